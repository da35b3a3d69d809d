// SPDX-License-Identifier: Apache-2.0
// The speed of a group's all-reduce, size by size, and the correctness of its results.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace droptest::experiments {

/// bytes / seconds. Units: bytes per second, of one rank's message.
double algorithm_bandwidth(std::uint64_t bytes, double seconds);

/// algorithm_bandwidth x 2 (n - 1) / n: the rate on each rank's link in an all-reduce that sends the fewest bytes. It
/// can be compared with the link's bandwidth at any number of ranks; 0 for one rank.
/// Source: nccl-tests, doc/PERFORMANCE.md.
double bus_bandwidth(std::uint64_t bytes, double seconds, int world_size);

/// The middle value, or the mean of the two middle ones. There is at least one.
double median(std::vector<double> values);

struct BandwidthPlan {
  std::uint64_t from_bytes = 1024;
  std::uint64_t to_bytes = std::uint64_t{64} << 20;
  int repetitions = 20;                     ///< most repetitions for each size
  std::chrono::milliseconds longest{1000};  ///< longest time for each size, unless one repetition takes longer
  enum class Memory : std::uint8_t { kHost, kDevice } memory = Memory::kHost;  ///< memory of the messages
};

/// The sizes: from_bytes, and four times the size before, up to to_bytes; rounded up to whole floats.
std::vector<std::uint64_t> message_sizes(const BandwidthPlan& plan);

struct BandwidthPoint {
  std::uint64_t bytes = 0;
  int repetitions = 0;
  double median_seconds = 0;  ///< median over repetitions of the slowest rank's time
  /// Elements over all ranks that differed from the sum, in the first and the last repetition.
  std::uint64_t wrong_elements = 0;
};

/// Sums float messages of the given sizes, each after a repetition that is not timed. Every repetition begins with a
/// barrier; in device memory, of the thread's current device, it ends when the device has the sums. Ranks: all, with
/// the same sizes; all get the same points. Traffic is of class control.
std::vector<BandwidthPoint> measure_all_reduce(comm::Communicator& group, std::span<const std::uint64_t> sizes,
                                               const BandwidthPlan& plan);

}  // namespace droptest::experiments
