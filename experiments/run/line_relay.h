// SPDX-License-Identifier: Apache-2.0
// The lines of a metrics.jsonl that several attempts of a run write, for the one who waits for the run.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/records/metrics_tail.h"

namespace droptest::experiments {

/// Passes the lines on as they come, each step once.
class LineRelay {
 public:
  /// Lines that are in the file already belong to the part of the run that this one continues: they are not passed on.
  LineRelay(const std::string& path, std::function<void(const nlohmann::json& line)> on_line);

  /// Passes on the lines that are new since the last call. A step that an earlier attempt has done is left out.
  void pass();
  /// The next attempt has written no line yet.
  void begin_attempt() { written_.reset(); }
  /// The step of the last line that the attempt has written, up to the last call of pass(); absent: it has written
  /// none.
  std::optional<std::uint64_t> written() const { return written_; }

 private:
  /// Step and seconds: a step that is done again has another time.
  using Id = std::pair<std::uint64_t, double>;
  static Id id_of(const NumberedLine& line);

  MetricsTail metrics_;
  std::function<void(const nlohmann::json& line)> on_line_;
  std::vector<Id> old_;                  ///< the lines that were there already, in ascending order, as in the file
  std::optional<std::uint64_t> passed_;  ///< the step of the last line that was passed on
  std::optional<std::uint64_t> written_;
};

}  // namespace droptest::experiments
