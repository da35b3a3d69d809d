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
  std::uint64_t samples = 0;  ///< that it has
  std::uint64_t step = 0;     ///< the first one without it
  std::string error;
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, file, shard, samples, step, error); }
};

struct DataRecord {
  std::uint64_t shards = 0;
  std::uint64_t samples = 0;       ///< of an epoch
  std::uint64_t position = 0;      ///< samples that training has gone through, lost ones too, over all epochs
  std::uint64_t lost_samples = 0;  ///< of those
  std::vector<LostShard> lost_shards;
};

}  // namespace droptest::experiments
