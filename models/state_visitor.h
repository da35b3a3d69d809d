// SPDX-License-Identifier: Apache-2.0
// The list of an object's state from one training step to the next.
#pragma once

#include <cstdint>
#include <string_view>

#include "comm/communicator.h"

namespace droptest::models {

/// A class with state shows all of it in one function, visit_state(visitor), in a fixed order. A visitor that saves
/// reads the values; one that restores writes them. Names are unique within an object.
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void number(std::string_view name, std::uint64_t& value) = 0;
  /// In the memory of the object's operations.
  virtual void tensor(std::string_view name, const comm::Tensor& tensor) = 0;
};

}  // namespace droptest::models
