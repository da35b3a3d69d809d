// SPDX-License-Identifier: Apache-2.0
// Tensors by name in one file: the safetensors format (docs/formats.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <istream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace droptest::models {

/// A tensor of a file, as little-endian bytes in C order.
struct StoredTensor {
  std::string dtype;  ///< "F32", "F64", "BF16", "F16", ...
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;
};

using StoredTensors = std::map<std::string, StoredTensor>;

/// Parses the bytes of a whole file. `where` names the file in messages.
/// Throws: ConfigError with the reason: short file, header not JSON, unknown dtype, size that does not match the shape,
/// overlapping or missing ranges, duplicate names.
StoredTensors parse_safetensors(std::span<const std::byte> file, const std::string& where);

/// The shape of a tensor; reads only the header of the file. Absent: the file has no such tensor. Throws: ConfigError
/// with the reason for an invalid header.
std::optional<std::vector<std::uint64_t>> stored_shape(std::istream& file, const std::string& name,
                                                       const std::string& where);

/// Calls `write` with the bytes of a file, piece by piece in order.
void write_safetensors(const StoredTensors& tensors, const std::map<std::string, std::string>& metadata,
                       const std::function<void(std::span<const std::byte>)>& write);

/// The values as floats; F32, F64, BF16 and F16 are known. Throws: ConfigError for another dtype.
std::vector<float> to_floats(const StoredTensor& tensor, const std::string& name);

/// The tensor with elements of another type, "F32", "F16" or "BF16", rounded to the nearest. Throws: as to_floats(),
/// and ConfigError for a finite element that becomes infinite in the new type.
StoredTensor converted(const StoredTensor& tensor, const std::string& dtype, const std::string& name);

}  // namespace droptest::models
