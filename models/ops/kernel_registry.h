// SPDX-License-Identifier: Apache-2.0
// The implementations of operations, by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "comm/tensor.h"
#include "models/ops/kernel_choice.h"

namespace droptest::models {

class AttentionKernel;
class MatmulKernel;

enum class KernelDevice : std::uint8_t { kHost, kCuda };

/// An entry of the registry.
struct KernelEntry {
  /// The function that makes the kernel; monostate: none, because the device's operations choose their code by its
  /// name.
  using Make =
      std::variant<std::monostate, std::unique_ptr<AttentionKernel> (*)(), std::unique_ptr<MatmulKernel> (*)()>;

  std::string_view operation;
  std::string_view name;
  KernelDevice device;
  std::vector<comm::ElementType> types;  ///< supported types of activations, or of operands for GEMMs on the host
  std::string_view summary;
  Make make;
  /// For attention: whether it supports heads of that width and type; null: all widths with the types in `types`.
  bool (*takes)(std::int64_t head_width, comm::ElementType type) = nullptr;
};

/// All entries. The first entry of an operation and a device is the default of KernelChoices. A spec for CUDA takes
/// cudnn for attention if it is there and supports the heads.
const std::vector<KernelEntry>& kernel_entries();
/// The names of the implementations of an operation on a device, the default first; empty: there is no choice.
std::vector<std::string> kernel_names(std::string_view operation, KernelDevice device);
/// Whether shared objects can implement the operation on the device.
bool takes_library(std::string_view operation, KernelDevice device);

/// Loads the shared object and checks that it has the operation. Returns "NAME VERSION", as the object calls itself.
/// Throws: as KernelLibrary.
std::string check_library(std::string_view operation, const std::string& path);

/// Throws: ConfigError for an operation or an implementation that the registry does not have on the device, and for a
/// shared object if takes_library() is false.
void check_kernels(const KernelChoices& choices, KernelDevice device);

/// The name of the chosen implementation. Throws: ConfigError for a name that the registry does not have.
std::string_view kernel_name(const KernelChoices& choices, std::string_view operation, KernelDevice device);

/// The chosen implementation. Throws: ConfigError for an unknown name; the errors of KernelLibrary.
std::unique_ptr<AttentionKernel> make_attention(const KernelChoices& choices, KernelDevice device);
std::unique_ptr<MatmulKernel> make_matmul(const KernelChoices& choices);

}  // namespace droptest::models
