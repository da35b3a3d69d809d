// SPDX-License-Identifier: Apache-2.0
// The implementations of operations that a model computes with.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace droptest::models {

/// An implementation of an operation: of the registry (kernel_registry.h), or of a shared object.
struct KernelChoice {
  std::string name;
  std::string library{};  ///< path of the shared object; empty: the registry's
  bool operator==(const KernelChoice&) const = default;
};

/// Operation -> its implementation. Operations that are absent have their default.
using KernelChoices = std::map<std::string, KernelChoice, std::less<>>;

}  // namespace droptest::models
