// SPDX-License-Identifier: Apache-2.0
// The interface with which an object shows its state between training steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "comm/communicator.h"

namespace droptest::models {

/// Consecutive elements of a rank's slice of one tensor, at a place in memory that many tensors share.
struct TensorPiece {
  std::size_t tensor = 0;    ///< number among the rank's tensors (Gpt2::tensors())
  std::uint64_t first = 0;   ///< first element in the slice
  std::uint64_t offset = 0;  ///< first element in the memory
  std::uint64_t count = 0;
};

/// Whether each data-parallel rank has the whole tensor or its own part of it.
enum class Sharding : std::uint8_t { kWhole, kShard };

/// A class with state shows all of it in one function, visit_state(visitor), in a fixed order. A visitor that saves
/// state reads the values; one that restores state writes them. Names are unique within an object, except that an
/// offloaded tensor is shown piece by piece under one name. The memory of such a piece is valid until the call returns;
/// then the values that the visitor wrote are stored.
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void number(std::string_view name, std::uint64_t& value) = 0;
  /// `tensor` is in the memory of the object's operations. Elements outside of all pieces are padding, which is no
  /// state.
  virtual void tensor(std::string_view name, const comm::Tensor& tensor, std::span<const TensorPiece> pieces,
                      Sharding sharding) = 0;
};

}  // namespace droptest::models
