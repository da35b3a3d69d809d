// SPDX-License-Identifier: Apache-2.0
// The parallel coordinates of each rank, and the groups of ranks that differ in one coordinate.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace droptest::comm {

enum class ParallelDimension : std::uint8_t {
  kTensor,    ///< ranks share each layer
  kSequence,  ///< ranks have other tokens of a sequence
  kData,      ///< ranks train on other batches
  kPipeline,  ///< ranks have other layers
};
inline constexpr std::array kParallelDimensions = {ParallelDimension::kTensor, ParallelDimension::kSequence,
                                                   ParallelDimension::kData, ParallelDimension::kPipeline};
/// The dimensions from the one with neighbouring ranks to the one with the largest distance between ranks.
using ParallelOrder = std::array<ParallelDimension, kParallelDimensions.size()>;
inline constexpr ParallelOrder kDefaultOrder = {ParallelDimension::kPipeline, ParallelDimension::kSequence,
                                                ParallelDimension::kTensor, ParallelDimension::kData};
/// The dimensions with the most traffic stay within a node. Source: Megatron-LM (Narayanan et al., SC 2021).
inline constexpr ParallelOrder kMegatronOrder = {ParallelDimension::kTensor, ParallelDimension::kSequence,
                                                 ParallelDimension::kData, ParallelDimension::kPipeline};
/// The name of a dimension as in a spec's /parallel: "tensor", "sequence", "data", "pipeline".
std::string_view name_of(ParallelDimension dimension);

/// One number for each dimension.
struct ParallelNumbers {
  int data = 0;
  int sequence = 0;
  int pipeline = 0;
  int tensor = 0;

  int& of(ParallelDimension dimension);
  int of(ParallelDimension dimension) const { return const_cast<ParallelNumbers*>(this)->of(dimension); }
  friend bool operator==(const ParallelNumbers&, const ParallelNumbers&) = default;
};

/// The number of ranks of each dimension, and the numbering of ranks. In the default order, the rank with the
/// coordinates p, s, t and d of P pipeline, S sequence, T tensor and D data ranks is p + P (s + S (t + T d)).
struct ParallelLayout : ParallelNumbers {
  explicit ParallelLayout(const ParallelNumbers& extents = {1, 1, 1, 1}, const ParallelOrder& in_order = kDefaultOrder)
      : ParallelNumbers(extents), order(in_order) {}

  ParallelOrder order;

  /// The product of all extents. Throws: ConfigError if an extent is not positive, the product is above 65534, or the
  /// order does not name each dimension once.
  int world_size() const;
  /// Number of ranks with the same part of the model, over which gradients are averaged.
  int gradient_ranks() const { return data * sequence; }
  /// The number of the rank with these coordinates among the gradient ranks.
  int gradient_rank(const ParallelNumbers& at) const { return at.sequence + sequence * at.data; }
  /// The distance from a rank to its neighbour in that dimension.
  int stride(ParallelDimension dimension) const;
  /// Throws: CheckError for a rank or a coordinate out of range.
  ParallelNumbers coordinates(int rank) const;
  int rank(const ParallelNumbers& coordinates) const;
  /// The ranks that differ from these coordinates only in those dimensions, the first of them fastest.
  std::vector<int> ranks_along(std::initializer_list<ParallelDimension> dimensions, ParallelNumbers at) const;
  /// Throws: ConfigError that shows the product, if it is not the number of started ranks.
  void require_world(int ranks) const;
  /// The layout in words: "tensor 2 x data 4"; "1 rank" if all extents are 1.
  std::string text() const;
};

/// The groups of one rank: for each dimension, the ranks that differ from it only in this dimension.
class ParallelGroups {
 public:
  /// Ranks: all of `world`, which is borrowed and outlives this. A dimension with all ranks uses the world itself, and
  /// a dimension with a single rank has no group; others are split off, in the order of kParallelDimensions. Throws:
  /// ConfigError unless the layout fits the world.
  ParallelGroups(const ParallelLayout& layout, Communicator& world);

  /// The group of a dimension, ranked by coordinate. Null: the dimension has one rank.
  Communicator* group(ParallelDimension dimension) const { return groups_[static_cast<std::size_t>(dimension)]; }
  /// The ranks that differ only in data and sequence, by gradient_rank(). Null: there is one.
  Communicator* gradient_group() const { return gradient_group_; }
  Communicator& world() const { return world_; }
  const ParallelLayout& layout() const { return layout_; }
  const ParallelNumbers& coordinates() const { return coordinates_; }

 private:
  ParallelLayout layout_;
  Communicator& world_;
  ParallelNumbers coordinates_;
  std::array<std::unique_ptr<Communicator>, kParallelDimensions.size()> owned_;
  std::array<Communicator*, kParallelDimensions.size()> groups_{};
  std::unique_ptr<Communicator> owned_gradient_group_;
  Communicator* gradient_group_ = nullptr;
};

}  // namespace droptest::comm
