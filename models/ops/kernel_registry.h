// SPDX-License-Identifier: Apache-2.0
// The operations' implementations, by name.
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

/// A line of the registry.
struct KernelEntry {
  /// Makes the kernel; monostate: the operations of the device know it by its name.
  using Make =
      std::variant<std::monostate, std::unique_ptr<AttentionKernel> (*)(), std::unique_ptr<MatmulKernel> (*)()>;

  std::string_view operation;
  std::string_view name;
  KernelDevice device;
  std::vector<comm::ElementType> types;  ///< of activations; GEMMs on the host: of operands
  std::string_view summary;
  Make make;
  /// Attention: whether it takes heads of that width with operands of that type; null: it takes all of `types`.
  bool (*takes)(std::int64_t head_width, comm::ElementType type) = nullptr;
};

/// All lines. The first of an operation and a device is its default.
const std::vector<KernelEntry>& kernel_entries();
/// The names of an operation on a device, from the default on; empty: there is no choice.
std::vector<std::string> kernel_names(std::string_view operation, KernelDevice device);
/// Whether shared objects can have implementations of the operation on the device.
bool takes_library(std::string_view operation, KernelDevice device);

/// Loads the shared object and checks that it has the operation. Returns "NAME VERSION", as the object calls itself.
/// Throws: those of KernelLibrary.
std::string check_library(std::string_view operation, const std::string& path);

/// Throws: ConfigError for an operation, or a name of one, that the registry does not have on the device, and for a
/// shared object where it takes none.
void check_kernels(const KernelChoices& choices, KernelDevice device);

/// The name of the chosen implementation. Throws: ConfigError for a name that the registry does not have.
std::string_view kernel_name(const KernelChoices& choices, std::string_view operation, KernelDevice device);

/// The chosen implementation. Throws: ConfigError for an unknown name; those of KernelLibrary.
std::unique_ptr<AttentionKernel> make_attention(const KernelChoices& choices, KernelDevice device);
std::unique_ptr<MatmulKernel> make_matmul(const KernelChoices& choices);

}  // namespace droptest::models
