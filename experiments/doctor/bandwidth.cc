// SPDX-License-Identifier: Apache-2.0
#include "experiments/doctor/bandwidth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "comm/device/device_buffer.h"
#include "comm/device/device_tensor.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSizeFactor = 4;
/// Ranks give small whole numbers that depend on place and rank: their sums are exact in any order.
constexpr std::uint64_t kValues = 11;
constexpr std::uint64_t kRankStride = 3;

float contribution(std::uint64_t element, int rank) {
  return static_cast<float>((element + kRankStride * static_cast<std::uint64_t>(rank)) % kValues);
}

/// The sums of each residue of the element's index.
std::vector<float> expected_sums(int world_size) {
  std::vector<float> sums(kValues);
  for (std::uint64_t residue = 0; residue < kValues; ++residue) {
    for (int rank = 0; rank < world_size; ++rank) sums[residue] += contribution(residue, rank);
  }
  return sums;
}

std::uint64_t count_wrong(std::span<const float> result, const std::vector<float>& sums) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < result.size(); ++i) wrong += result[i] != sums[i % kValues] ? 1 : 0;
  return wrong;
}

/// One size's messages and their repetitions.
class SizeTrial {
 public:
  SizeTrial(comm::Communicator& group, std::uint64_t bytes, BandwidthPlan::Memory memory)
      : group_(group), input_(bytes / sizeof(float)), output_(input_.size()), sums_(expected_sums(group.world_size())) {
    for (std::size_t i = 0; i < input_.size(); ++i) input_[i] = contribution(i, group.rank());
    if (memory == BandwidthPlan::Memory::kHost) return;
    on_device_.emplace(input_.size());
    comm::copy_to_device(std::span<const float>(input_), on_device_->input.elems(), on_device_->stream);
  }

  /// Returns the seconds of this rank.
  double repeat() {
    std::fill(output_.begin(), output_.end(), std::numeric_limits<float>::quiet_NaN());
    if (on_device_) return repeat_on_device(*on_device_);
    group_.barrier({sim::TrafficClass::kControl, "bandwidth", -1});
    const auto start = Clock::now();
    group_.all_reduce(comm::ConstTensor(std::span<const float>(input_)), comm::Tensor(std::span<float>(output_)),
                      comm::ReduceOp::kSum, {sim::TrafficClass::kControl, "bandwidth", -1});
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  std::uint64_t wrong() const { return count_wrong(output_, sums_); }

 private:
  struct OnDevice {
    explicit OnDevice(std::size_t count)
        : stream(comm::current_device()), input(count, "bandwidth input"), output(count, "bandwidth output") {}
    comm::Stream stream;
    comm::DeviceBuffer<float> input;
    comm::DeviceBuffer<float> output;
  };

  double repeat_on_device(OnDevice& device) {
    comm::copy_to_device(std::span<const float>(output_), device.output.elems(), device.stream);
    device.stream.synchronize();
    group_.barrier({sim::TrafficClass::kControl, "bandwidth", -1});
    const auto start = Clock::now();
    group_.all_reduce(comm::device_tensor(comm::DeviceSpan<const float>(device.input.elems()), device.stream),
                      comm::device_tensor(device.output.elems(), device.stream), comm::ReduceOp::kSum,
                      {sim::TrafficClass::kControl, "bandwidth", -1});
    device.stream.synchronize();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    comm::copy_to_host(comm::DeviceSpan<const float>(device.output.elems()), std::span<float>(output_), device.stream);
    device.stream.synchronize();
    return seconds;
  }

  comm::Communicator& group_;
  std::vector<float> input_;
  std::vector<float> output_;
  std::vector<float> sums_;
  std::optional<OnDevice> on_device_;  ///< absent: the messages are in host memory
};

/// Makes each value the largest or the sum over ranks.
template <class T>
void combine(comm::Communicator& group, std::span<T> values, comm::ReduceOp op) {
  group.all_reduce(comm::Tensor(values), op, {sim::TrafficClass::kControl, "bandwidth result", -1});
}

BandwidthPoint measure_size(comm::Communicator& group, std::uint64_t bytes, const BandwidthPlan& plan) {
  SizeTrial trial(group, bytes, plan.memory);
  trial.repeat();  // makes connections, fills buffers and caches
  double first = trial.repeat();
  std::uint64_t wrong = trial.wrong();
  combine(group, std::span<double>(&first, 1), comm::ReduceOp::kMax);
  const double longest = std::chrono::duration<double>(plan.longest).count();
  const double fitting = first > 0 ? std::floor(longest / first) : plan.repetitions;
  const int repetitions = static_cast<int>(std::clamp(fitting, 1.0, static_cast<double>(plan.repetitions)));
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) seconds.push_back(trial.repeat());
  wrong += trial.wrong();
  combine(group, std::span<double>(seconds), comm::ReduceOp::kMax);
  combine(group, std::span<std::uint64_t>(&wrong, 1), comm::ReduceOp::kSum);
  return {bytes, repetitions, median(seconds), wrong};
}

}  // namespace

double algorithm_bandwidth(std::uint64_t bytes, double seconds) { return static_cast<double>(bytes) / seconds; }

double bus_bandwidth(std::uint64_t bytes, double seconds, int world_size) {
  return algorithm_bandwidth(bytes, seconds) * 2 * (world_size - 1) / world_size;
}

double median(std::vector<double> values) {
  DROPTEST_CHECK(!values.empty(), "the median of nothing");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<std::uint64_t> message_sizes(const BandwidthPlan& plan) {
  std::vector<std::uint64_t> sizes;
  std::uint64_t bytes = plan.from_bytes;
  while (bytes <= plan.to_bytes) {
    sizes.push_back((bytes + sizeof(float) - 1) / sizeof(float) * sizeof(float));
    if (bytes > plan.to_bytes / kSizeFactor) break;
    bytes *= kSizeFactor;
  }
  return sizes;
}

std::vector<BandwidthPoint> measure_all_reduce(comm::Communicator& group, std::span<const std::uint64_t> sizes,
                                               const BandwidthPlan& plan) {
  std::vector<BandwidthPoint> points;
  for (const std::uint64_t bytes : sizes) points.push_back(measure_size(group, bytes, plan));
  return points;
}

}  // namespace droptest::experiments
