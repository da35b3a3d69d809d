// SPDX-License-Identifier: Apache-2.0
// The sample of each place in training: the position is a number, not a state.
#pragma once

#include <cstdint>
#include <optional>

#include "experiments/data/sample_order.h"
#include "experiments/data/shard_config.h"

namespace droptest::experiments {

/// The rest of an epoch that is smaller than a global batch.
enum class LastBatch : std::uint8_t {
  kTrained,  ///< batches run on into the next epoch; the last batch of the run is smaller
  kDropped,  ///< left out: other samples in each epoch, since the order differs
};

/// Positions count samples through all epochs: position p is place p % samples of epoch p / samples. A step takes
/// `batch` positions from begin() on. So equal global batches read the same samples, whatever the layout is, and a run
/// that goes on with another global batch reads each sample once, too. Thread safety: const.
class SamplePlan {
 public:
  struct Rules {
    std::uint64_t seed = 1;
    ShardConfig::Order order = ShardConfig::Order::kShuffled;
    LastBatch last_batch = LastBatch::kTrained;
    std::uint64_t epochs = 0;  ///< 0: without an end
  };
  /// Throws: CheckError if last batches are dropped and `samples` has no whole batch.
  SamplePlan(const Rules& rules, std::uint64_t samples, std::uint64_t batch);

  /// The position at which the step begins that comes after `position` samples and takes `batch` of them: fewer if
  /// replicas are missing.
  std::uint64_t begin(std::uint64_t position, std::uint64_t batch) const;
  std::uint64_t begin(std::uint64_t position) const { return begin(position, batch_); }
  /// The sample at a position; absent: the position is behind the last epoch.
  std::optional<std::uint64_t> sample(std::uint64_t position) const;
  /// Steps from `position` to the end of the last epoch; absent without an end.
  std::optional<std::uint64_t> steps_left(std::uint64_t position) const;
  std::uint64_t samples() const { return order_.samples(); }
  std::uint64_t batch() const { return batch_; }

 private:
  Rules rules_;
  SampleOrder order_;
  std::uint64_t batch_;
};

}  // namespace droptest::experiments
