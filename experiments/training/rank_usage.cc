// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/rank_usage.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>

#include "comm/device/device_buffer.h"
#include "comm/device/device_info.h"

namespace droptest::experiments {
namespace {

double cpu_seconds(RankUsageMeter::Scope scope) {
  timespec time{};
  ::clock_gettime(scope == RankUsageMeter::Scope::kThread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The memory of the process now; 0 if the system does not give it.
std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  std::uint64_t resident = 0;
  file >> pages >> resident;
  return resident * static_cast<std::uint64_t>(std::max(::sysconf(_SC_PAGESIZE), 0L));
}

std::uint64_t total_device_bytes(const std::optional<int>& index) {
  if (!index) return 0;
  for (const comm::DeviceInfo& device : comm::survey_devices().devices) {
    if (device.index == *index) return device.total_bytes;
  }
  return 0;
}

}  // namespace

RankUsageMeter::RankUsageMeter(Scope scope, std::optional<int> device)
    : scope_(scope),
      device_(device),
      device_total_bytes_(total_device_bytes(device)),
      last_cpu_seconds_(cpu_seconds(scope)) {
  if (device_total_bytes_ != 0) comm::restart_device_memory_peak();
}

RankUsage RankUsageMeter::take(const comm::CommunicatorUse& use) {
  RankUsage usage;
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_time_).count();
  usage.resident_bytes = resident_bytes();
  if (device_total_bytes_ != 0) usage.device_bytes = device_total_bytes_ - comm::free_device_bytes(*device_);
  usage.cpu_seconds = cpu_seconds(scope_);
  usage.sent_bytes = use.sent_bytes;
  usage.busy_seconds = std::max(0.0, seconds - (use.waiting_seconds - last_use_.waiting_seconds));
  if (seconds > 0) {
    usage.cpu_percent = 100 * (usage.cpu_seconds - last_cpu_seconds_) / seconds;
    usage.sent_bytes_per_second = static_cast<double>(use.sent_bytes - last_use_.sent_bytes) / seconds;
  }
  last_time_ = now;
  last_cpu_seconds_ = usage.cpu_seconds;
  last_use_ = use;
  return usage;
}

std::optional<std::uint64_t> RankUsageMeter::device_peak_bytes() const {
  if (device_total_bytes_ == 0) return std::nullopt;
  const std::uint64_t in_use = device_total_bytes_ - comm::free_device_bytes(*device_);
  const comm::DeviceMemoryUse own = comm::device_memory_use();
  return in_use + std::max(own.peak, own.bytes) - own.bytes;
}

}  // namespace droptest::experiments
