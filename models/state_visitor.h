// SPDX-License-Identifier: Apache-2.0
// The list of an object's state from one training step to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "comm/communicator.h"

namespace droptest::models {

/// Consecutive elements of a rank's slice of one tensor of the model, within memory for many.
struct TensorPiece {
  std::size_t tensor = 0;    ///< its number among the rank's tensors (Gpt2::tensors())
  std::uint64_t first = 0;   ///< its first element in the slice
  std::uint64_t offset = 0;  ///< its first element in the memory
  std::uint64_t count = 0;
};

/// Whether each data-parallel rank has all of a tensor, or a part of it that is its own.
enum class Sharding : std::uint8_t { kWhole, kShard };

/// A class with state shows all of it in one function, visit_state(visitor), in a fixed order. A visitor that saves
/// reads the values; one that restores writes them. Names are unique within an object, but that a tensor outside of
/// memory is shown piece by piece under one name; values that a visitor writes last until the call returns at least,
/// and then go back there.
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void number(std::string_view name, std::uint64_t& value) = 0;
  /// In the memory of the object's operations. Elements outside of all pieces are padding, and no state.
  virtual void tensor(std::string_view name, const comm::Tensor& tensor, std::span<const TensorPiece> pieces,
                      Sharding sharding) = 0;
};

}  // namespace droptest::models
