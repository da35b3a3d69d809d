// SPDX-License-Identifier: Apache-2.0
// The buckets of an arena of parameters, and the part of each that a data-parallel rank owns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/gpt2/parameter_table.h"

namespace droptest::models {

/// The ZeRO stage of data-parallel ranks and the sizes of their buckets. Source: Rajbhandari et al. 2020 (ZeRO),
/// section 5; buckets: Li et al. 2020 (PyTorch DDP), section 3.2.3.
struct ShardOptions {
  int zero = 0;  ///< 0: nothing is sharded; 1: optimizer state; 2: gradients too; 3: parameters too
  std::uint64_t bucket_bytes = std::uint64_t{25} << 20U;         ///< size limit of a bucket with zero 0 to 2
  std::uint64_t first_bucket_bytes = std::uint64_t{1} << 20U;    ///< size limit of the first bucket with zero 0 to 2
  std::uint64_t gather_bucket_bytes = std::uint64_t{25} << 20U;  ///< size limit of a bucket with zero 3
  /// The time at which gradients are reduced with zero 2 and 3. With zero 0 and 1, they are always reduced after the
  /// last micro-batch.
  enum class Reduce : std::uint8_t { kAfterLast, kAfterEach } reduce = Reduce::kAfterLast;
  int micro_batches = 1;          ///< micro-batches of a step
  bool offloads_moments = false;  ///< moments are stored outside of memory (Ops::make_storage())
  bool offloads_values = false;   ///< values are stored outside of memory; two blocks and other tensors are in memory
  std::uint64_t offload_piece_elems = std::uint64_t{1} << 20U;  ///< size limit of a piece in an update

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("zero", zero);
    visit("bucket_bytes", bucket_bytes);
    visit("first_bucket_bytes", first_bucket_bytes);
    visit("gather_bucket_bytes", gather_bucket_bytes);
    visit("reduce", reduce, {{"after_last", Reduce::kAfterLast}, {"after_each", Reduce::kAfterEach}});
  }
  bool shards_state() const { return zero >= 1; }
  /// Whether a rank has only memory for its own gradients and for those of units in use. If several micro-batches are
  /// added up before the reduction, all gradients need memory.
  bool shards_gradients() const { return zero >= 2 && (reduce == Reduce::kAfterEach || micro_batches == 1); }
  bool reduces_each() const { return zero >= 2 && reduce == Reduce::kAfterEach; }
  bool shards_values() const { return zero >= 3; }
};

/// The elements of the arena in one collective. Buckets, and the parts of the ranks in them, end at ends of chunks
/// (ParameterTable::chunk_ends()).
struct Bucket {
  std::string gradients;  ///< name of the messages of its gradients
  std::string parameters;
  int layer = kOutsideOfBlocks;  ///< the block that the whole bucket belongs to, else kOutsideOfBlocks
  std::size_t last_unit = 0;     ///< the last unit with elements in it; when that is ready, the bucket is ready
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> counts;  ///< elements of each rank's part
};

/// Contiguous elements of an arena that a rank owns.
struct OwnPart {
  std::uint64_t offset = 0;  ///< offset in the arena
  std::uint64_t count = 0;
  std::uint64_t shard_offset = 0;  ///< offset among the rank's own elements
};

/// The cut of an arena into buckets and own parts. Determinism: a pure function of its arguments; everything except the
/// own parts is equal on all ranks.
class ShardPlan {
 public:
  /// The plan of rank `rank` of `ranks` data-parallel ranks. Buckets are consecutive; each has as many chunks as fit
  /// into its size limit, at least one. With zero 2 and 3, no bucket extends over two units. Throws: ConfigError for
  /// inconsistent options.
  ShardPlan(const ParameterTable& table, std::uint64_t element_bytes, const ShardOptions& options, int ranks, int rank);

  const ShardOptions& options() const { return options_; }
  /// The buckets; none if there is only one rank.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// The elements that the rank updates: its part of each bucket, in order. Without sharding, one part with all trained
  /// elements.
  const std::vector<OwnPart>& own() const { return own_; }
  /// The rank's part of bucket number i.
  const OwnPart& own_of_bucket(std::size_t i) const { return own_of_bucket_[i]; }
  /// The total number of elements of own().
  std::uint64_t own_elems() const { return own_elems_; }

 private:
  ShardOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<OwnPart> own_;
  std::vector<OwnPart> own_of_bucket_;
  std::uint64_t own_elems_ = 0;
};

}  // namespace droptest::models
