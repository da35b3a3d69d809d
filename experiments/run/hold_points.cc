// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/hold_points.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "comm/json/read_file.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr const char* kHoldVariable = "DROPTEST_HOLD_FOLDER";
constexpr std::string_view kStepPoint = "step-";
constexpr std::string_view kForwardPoint = "forward-";
constexpr std::string_view kAllReducePoint = "all-reduce";
constexpr std::chrono::milliseconds kHoldPoll{5};
constexpr std::chrono::minutes kLongestHold{10};  // a test that has died leaves its programs behind

bool is_hold_point(std::string_view name) {
  if (name == kAllReducePoint) return true;
  for (const std::string_view kind : {kStepPoint, kForwardPoint}) {
    if (!name.starts_with(kind) || name.size() == kind.size()) continue;
    const std::string_view number = name.substr(kind.size());
    return std::all_of(number.begin(), number.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  }
  return false;
}

}  // namespace

HoldPoints::HoldPoints(std::string folder, const comm::Clock& clock) : folder_(std::move(folder)), clock_(&clock) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!is_hold_point(name.substr(0, name.find('.')))) {
      throw ConfigError(std::string(kHoldVariable) + ": " + entry->path().string() +
                        ": got an unknown point, want step-N or forward-N with the number of a step, or all-reduce");
    }
  }
  if (error) throw ConfigError(std::string(kHoldVariable) + ": read " + folder_ + ": " + error.message());
}

std::optional<HoldPoints> HoldPoints::of(const comm::Environment& environment, const comm::Clock& clock) {
  const auto found = environment.find(kHoldVariable);
  if (found == environment.end()) return std::nullopt;
  return HoldPoints(found->second, clock);
}

void HoldPoints::wait_before_step(int rank, std::uint64_t step) const {
  wait_at(std::string(kStepPoint) + std::to_string(step), rank);
}

void HoldPoints::wait_after_forward(int rank, std::uint64_t step) const {
  wait_at(std::string(kForwardPoint) + std::to_string(step), rank);
}

void HoldPoints::wait_before_all_reduce(int rank) const { wait_at(std::string(kAllReducePoint), rank); }

void HoldPoints::wait_at(const std::string& point, int rank) const {
  const std::filesystem::path file = std::filesystem::path(folder_) / point;
  const auto is_held = [&file] {
    std::error_code ignored;
    return std::filesystem::exists(file, ignored);
  };
  if (!is_held()) return;
  const std::string here = file.string() + ".rank-" + std::to_string(rank) + ".pid-" + std::to_string(::getpid());
  if (!std::ofstream(here)) comm::fail_on_file("create", here, errno);
  const auto deadline = clock_->now() + kLongestHold;
  while (is_held()) {
    if (clock_->now() > deadline) {
      throw ConfigError(std::string(kHoldVariable) + ": rank " + std::to_string(rank) + " has waited for " +
                        std::to_string(kLongestHold.count()) + " minutes; remove " + file.string());
    }
    clock_->sleep_for(kHoldPoll);
  }
}

}  // namespace droptest::experiments
