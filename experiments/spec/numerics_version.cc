// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/numerics_version.h"

#include "comm/lossy/clock/group_timeline.h"

namespace droptest::experiments {
namespace {

struct Change {
  int version;
  std::string_view what;
  bool (*concerns)(const RunConfig& config);
};

// Newest first. docs/results_changes.md tells what each one moves.
constexpr Change kChanges[] = {
    {2, "fates that depend on virtual time",
     [](const RunConfig& config) { return config.time && comm::time_feeds_fates(config.network, *config.time); }},
    {2, "stragglers of transfers",
     [](const RunConfig& config) { return config.time && config.time->transfer_p99_over_p50 != 1; }},
};

}  // namespace

Numerics numerics_of(const RunConfig& config) {
  for (const Change& change : kChanges) {
    if (change.concerns(config)) return {change.version, change.what};
  }
  return {};
}

}  // namespace droptest::experiments
