// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/run_holder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "experiments/files/file_lock.h"

namespace droptest::experiments {
namespace {

constexpr double kLongestSilence = 600;  // seconds

/// Seconds since the file was last written; infinite if it is not there.
double age_of(const std::string& path) {
  std::error_code error;
  const auto written = std::filesystem::last_write_time(path, error);
  if (error) return INFINITY;
  const std::chrono::duration<double> age = std::filesystem::file_time_type::clock::now() - written;
  return std::max(0.0, age.count());  // the clocks of two machines differ
}

}  // namespace

bool RunHolder::works() const { return !silent_seconds || *silent_seconds <= kLongestSilence; }

std::string RunHolder::text() const {
  if (!silent_seconds) return name;
  const long long seconds = std::llround(*silent_seconds);
  return name + ", which wrote its last line " +
         (seconds < 120 ? std::to_string(seconds) + " s" : std::to_string(seconds / 60) + " min") + " ago";
}

std::optional<RunHolder> holder_of(const RunDirectory& directory) {
  const std::string lock = directory.lock();
  switch (look_at_lock(lock)) {
    case LockLook::kFree:
      return std::nullopt;
    case LockLook::kHeld:
      return RunHolder{lock_holder(lock), std::nullopt};
    case LockLook::kElsewhere:
      break;
  }
  return RunHolder{lock_holder(lock), std::min(age_of(lock), age_of(directory.metrics()))};
}

}  // namespace droptest::experiments
