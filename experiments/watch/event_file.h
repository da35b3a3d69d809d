// SPDX-License-Identifier: Apache-2.0
// Records of TensorBoard's event files. docs/watching.md has the format.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

namespace droptest::experiments {

/// A record of an event file: length, masked CRC-32C of the length, data, masked CRC-32C of the data.
/// Source: TensorFlow's record format (TFRecord).
std::string framed_record(std::string_view data);

/// The data of the first event of a file, which names the version of the format.
std::string version_event(double wall_time);

/// `count` occurrences of a whole number.
struct HistogramBucket {
  double value = 0;
  double count = 0;
};

/// Values of one step. Units: `wall_time` in seconds since 1970.
class SummaryEvent {
 public:
  SummaryEvent(double wall_time, std::uint64_t step) : wall_time_(wall_time), step_(step) {}

  void add_scalar(std::string_view tag, double value);
  /// The buckets' values ascend.
  void add_histogram(std::string_view tag, std::span<const HistogramBucket> buckets);
  /// Adds the start of a session of the plugin "hparams". Members of `values` are numbers, strings or booleans.
  void add_session_start(const nlohmann::json& values, std::string_view group);
  enum class SessionStatus : std::uint8_t { kSuccess = 1, kFailure = 2, kRunning = 3 };
  void add_session_end(SessionStatus status);

  bool empty() const { return values_.empty(); }
  /// The data of the event, to be framed.
  std::string data() const;

 private:
  void add_hparams(std::string_view name, std::string_view content);
  double wall_time_;
  std::uint64_t step_;
  std::string values_;  ///< values in their encoded form
};

}  // namespace droptest::experiments
