// SPDX-License-Identifier: Apache-2.0
// The places of a rank's parameters in an arena: one number for each element of its tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/gpt2/gpt2_tensors.h"
#include "models/ops/ops.h"
#include "models/parameter.h"

namespace droptest::models {

/// Elements of the padding of a tensor.
std::uint64_t padding_of(const Gpt2Tensor& tensor);

/// The tensors of a block, or those outside of blocks: a pass uses them together, and their gradients become ready
/// together.
struct ParameterUnit {
  int layer = kOutsideOfBlocks;
  std::uint64_t offset = 0;
  std::uint64_t count = 0;  ///< trained elements
};

/// Tensors of a unit that lie next to each other, and of which each tensor-parallel rank has a whole copy.
struct ReplicatedRun {
  std::size_t unit = 0;
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
  std::string name;  ///< of the gradient of the first tensor
};

/// Names and places, no memory. An arena has no gaps. It begins with the last block and ends with the tensors
/// outside of blocks: the order in which a backward pass makes gradients ready. Behind them are the padding of the
/// vocabulary, the frozen tensors and the copies, which are neither trained nor sent nor part of the gradient norm.
struct ParameterTable {
  explicit ParameterTable(std::vector<Gpt2Tensor> list);
  /// Throws: CheckError for a name that no tensor has.
  std::size_t number_of(std::string_view name) const;
  /// The tensors, without padding, in the order of the arena.
  std::vector<std::size_t> in_order() const;
  /// One past each chunk of kNormChunkElems or fewer elements, in order: tensors are cut into chunks from their
  /// beginning. Buckets and shards end at the ends of chunks.
  std::vector<std::uint64_t> chunk_ends() const;
  /// Those of all units, in order.
  std::vector<ReplicatedRun> replicated_runs() const;

  std::vector<Gpt2Tensor> tensors;
  std::vector<ParameterRange> ranges;  ///< of each tensor, with padding
  std::vector<std::uint64_t> trained;  ///< elements of each tensor, without; 0 of frozen ones and of copies
  std::vector<ParameterUnit> units;    ///< in order
  std::vector<std::size_t> unit_of;    ///< of each tensor
  std::uint64_t elems = 0;             ///< of an arena
  std::uint64_t trained_elems = 0;     ///< without the padding at the end
};

}  // namespace droptest::models
