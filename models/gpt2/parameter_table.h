// SPDX-License-Identifier: Apache-2.0
// The places of a rank's parameters in an arena, which has one number for each element of the tensors.
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

/// The number of padding elements of a tensor.
std::uint64_t padding_of(const Gpt2Tensor& tensor);

/// The tensors of a block, or those outside of blocks. A pass uses them together, and their gradients become ready
/// together.
struct ParameterUnit {
  int layer = kOutsideOfBlocks;
  std::uint64_t offset = 0;
  std::uint64_t count = 0;  ///< trained elements
};

/// Consecutive replicated tensors of a unit: each tensor-parallel rank has a whole copy.
struct ReplicatedRun {
  std::size_t unit = 0;
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
  std::string name;  ///< name of the gradient of the first tensor
};

/// The names of the tensors and their places in an arena. An arena has no gaps. The trained elements come first, in the
/// order in which a backward pass makes gradients ready: from the last block to the first one, then the tensors outside
/// of blocks. After these come the padding of the vocabulary, the frozen tensors and the copies; they are neither
/// trained nor sent, and not part of the gradient norm.
struct ParameterTable {
  explicit ParameterTable(std::vector<Gpt2Tensor> list);
  /// Throws: CheckError for a name that no tensor has.
  std::size_t number_of(std::string_view name) const;
  /// The numbers of the tensors in the order of the arena.
  std::vector<std::size_t> in_order() const;
  /// The end of each chunk of trained elements, in order. Each trained tensor is cut from its beginning into chunks of
  /// kNormChunkElems elements; the last one may be shorter. Buckets and shards end at ends of chunks.
  std::vector<std::uint64_t> chunk_ends() const;
  /// The replicated runs of all units, in order.
  std::vector<ReplicatedRun> replicated_runs() const;

  std::vector<Gpt2Tensor> tensors;
  std::vector<ParameterRange> ranges;  ///< the place of each tensor, with padding
  std::vector<std::uint64_t> trained;  ///< elements of each tensor without padding; 0 for frozen tensors and copies
  std::vector<ParameterUnit> units;    ///< the units in the order of the arena
  std::vector<std::size_t> unit_of;    ///< the unit of each tensor
  std::uint64_t elems = 0;             ///< elements of an arena
  std::uint64_t trained_elems = 0;     ///< elements without padding, frozen tensors and copies
};

}  // namespace droptest::models
