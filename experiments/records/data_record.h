// SPDX-License-Identifier: Apache-2.0
// The record of training data in shards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/state_visitor.h"

namespace droptest::experiments {

/// A shard that was set aside, since it could not be read.
struct LostShard {
  std::string file;
  std::uint64_t shard = 0;    ///< number of the file
  std::uint64_t samples = 0;  ///< samples of the shard
  std::uint64_t step = 0;     ///< first step without the shard
  std::string error;
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, file, shard, samples, step, error); }
};

struct DataRecord {
  std::uint64_t shards = 0;
  std::uint64_t samples = 0;       ///< samples of an epoch
  std::uint64_t position = 0;      ///< samples that training has gone through, including lost ones, over all epochs
  std::uint64_t lost_samples = 0;  ///< lost samples among those that training has gone through
  std::vector<LostShard> lost_shards;
};

}  // namespace droptest::experiments
