// SPDX-License-Identifier: Apache-2.0
// The choice of implementations of a model's operations.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace droptest::models {

/// An implementation of an operation, from the registry (kernel_registry.h) or from a shared object.
struct KernelChoice {
  std::string name;
  std::string library{};  ///< path of the shared object; empty: the registry
  bool operator==(const KernelChoice&) const = default;
};

/// The implementation of each operation. Operations that are not in the map have their default.
using KernelChoices = std::map<std::string, KernelChoice, std::less<>>;

}  // namespace droptest::models
