// SPDX-License-Identifier: Apache-2.0
// Estimates of the time that the runs of a plan take.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/run/run_forecast.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::cli {

/// The estimate follows from finished runs of the same shape on this machine, else from a step that is measured here.
class TimeEstimate {
 public:
  /// A run with a wanted time.
  struct Run {
    const experiments::RunConfig* config;  ///< borrowed
    const std::string* shape;              ///< text of its shape_of(); borrowed
    bool is_finished;
  };
  /// `folder`: the folder of the experiment's finished runs, these or others.
  TimeEstimate(const std::vector<Run>& runs, const std::string& folder);

  /// Wall seconds of the run by itself; absent if nothing is known.
  std::optional<double> seconds(const Run& run) const;
  /// Core seconds of the run, for runs that share the cores of this machine.
  std::optional<double> core_seconds(const Run& run, double jobs) const;
  /// The source of the estimate, and its error.
  std::string basis() const;

 private:
  struct Speeds {
    double sum = 0;
    double low = 1e300;
    double high = 0;
    std::size_t count = 0;
    void add(double seconds);
    double mean() const { return sum / static_cast<double>(count); }
  };
  /// Learns from a run that is finished, on this machine.
  void take(const std::string& folder);
  /// Measures a step of the largest run without a finished run of its shape; of equally large runs the last one, which
  /// has more loss in most specs.
  void measure(const std::vector<Run>& runs);

  std::map<std::string, Speeds> finished_;  ///< seconds per step, by shape
  std::size_t records_ = 0;
  std::optional<experiments::StepTime> step_;
  double measured_operations_ = 1;
  std::size_t shapes_ = 0;  ///< number of shapes that the measured step stands for
  std::string why_not_;
};

}  // namespace droptest::cli
