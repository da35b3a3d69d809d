// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/rank_clock.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "comm/rank_agreement.h"

namespace droptest::experiments {
namespace {

/// A text that processes with one steady clock share: start of the machine and time namespace. Empty: not known.
std::string clock_name() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string start;
  std::error_code error;
  const std::filesystem::path time_namespace = std::filesystem::read_symlink("/proc/self/ns/time", error);
  return std::getline(file, start) ? start + " " + time_namespace.string() : std::string();
}

}  // namespace

RankClock::RankClock(comm::Communicator& group) {
  const std::vector<std::string> names = gather_texts(clock_name(), group, "clocks of the ranks");
  is_shared_ = !names.front().empty() &&
               std::all_of(names.begin(), names.end(), [&](const std::string& name) { return name == names.front(); });
  met();
}

void RankClock::met() {
  if (!is_shared_) origin_ = comm::steady_clock().now();
}

comm::Clock::TimePoint RankClock::meet(comm::Communicator& group, std::string_view name) {
  group.barrier({sim::TrafficClass::kControl, name});
  const comm::Clock::TimePoint now = comm::steady_clock().now();
  if (!is_shared_) return now;
  using Ticks = comm::Clock::TimePoint::duration;
  const auto ticks = static_cast<std::uint64_t>(now.time_since_epoch().count());
  return comm::Clock::TimePoint(Ticks(static_cast<Ticks::rep>(number_of_root(ticks, group, name))));
}

}  // namespace droptest::experiments
