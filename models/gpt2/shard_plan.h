// SPDX-License-Identifier: Apache-2.0
// Buckets of an arena of parameters, and which data-parallel rank owns which part of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/gpt2/parameter_table.h"

namespace droptest::models {

/// The ZeRO stage of data-parallel ranks and the sizes of their buckets. Source: Rajbhandari et al. 2020 (ZeRO),
/// section 5; buckets: Li et al. 2020 (PyTorch DDP), section 3.2.3.
struct ShardOptions {
  int zero = 0;  ///< 0: nothing; 1: the optimizer's state; 2: gradients too; 3: parameters too
  std::uint64_t bucket_bytes = std::uint64_t{25} << 20U;         ///< of gradients that are reduced together, at most
  std::uint64_t first_bucket_bytes = std::uint64_t{1} << 20U;    ///< of the first ones that a backward pass makes ready
  std::uint64_t gather_bucket_bytes = std::uint64_t{25} << 20U;  ///< of a block's parameters, with zero 3
  /// When gradients are reduced with zero 2 and 3; else it is after the last micro-batch.
  enum class Reduce : std::uint8_t { kAfterLast, kAfterEach } reduce = Reduce::kAfterLast;
  int micro_batches = 1;          ///< of a step
  bool offloads_moments = false;  ///< the optimizer's state is outside of memory (Ops::make_storage())
  bool offloads_values = false;   ///< values are, but for those of two blocks and those outside of blocks
  std::uint64_t offload_piece_elems = std::uint64_t{1} << 20U;  ///< that an update brings back at once, at most

  bool shards_state() const { return zero >= 1; }
  /// Whether a rank has memory for its own gradients and for those of units in use alone. Those of several
  /// micro-batches that are added up before they are reduced need all of it.
  bool shards_gradients() const { return zero >= 2 && (reduce == Reduce::kAfterEach || micro_batches == 1); }
  bool reduces_each() const { return zero >= 2 && reduce == Reduce::kAfterEach; }
  bool shards_values() const { return zero >= 3; }
};

/// Elements of the arena that travel in one collective. Cut at the ends of chunks (ParameterTable::chunk_ends()), as
/// are the parts of the ranks.
struct Bucket {
  std::string gradients;  ///< the name of its messages
  std::string parameters;
  int layer = kOutsideOfBlocks;  ///< of the block that all of it belongs to, else kOutsideOfBlocks
  std::size_t last_unit = 0;     ///< the last one that it has elements of: when that is ready, the bucket is
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> counts;  ///< of each rank's part, in the order of the ranks
};

/// A rank's own elements of an arena that lie together.
struct OwnPart {
  std::uint64_t offset = 0;  ///< in the arena
  std::uint64_t count = 0;
  std::uint64_t shard_offset = 0;  ///< among the rank's own elements
};

/// Determinism: a pure function of its arguments; all but the own parts is the same on all ranks.
class ShardPlan {
 public:
  /// Of rank `rank` of `ranks` data-parallel ones. Buckets are consecutive; each has the chunks that fit into its
  /// bytes, and at least one. With zero 2 and 3 none reaches over two units. Throws: ConfigError for options without
  /// meaning.
  ShardPlan(const ParameterTable& table, std::uint64_t element_bytes, const ShardOptions& options, int ranks, int rank);

  const ShardOptions& options() const { return options_; }
  /// None of a lone rank.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Whose state the rank updates: its part of each bucket, in order; all in one where no state is sharded.
  const std::vector<OwnPart>& own() const { return own_; }
  /// Of bucket number i.
  const OwnPart& own_of_bucket(std::size_t i) const { return own_of_bucket_[i]; }
  /// Of all of own() together.
  std::uint64_t own_elems() const { return own_elems_; }

 private:
  ShardOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<OwnPart> own_;
  std::vector<OwnPart> own_of_bucket_;
  std::uint64_t own_elems_ = 0;
};

}  // namespace droptest::models
