// SPDX-License-Identifier: Apache-2.0
#include "experiments/checkpoint/starting_checkpoint.h"

#include <vector>

#include "comm/rank_agreement.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/checkpoint/rescue.h"
#include "experiments/checkpoint/restore.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// The manifest of the run's newest intact checkpoint. The files of ranks are read only if they matter.
std::optional<Manifest> newest_intact(const CheckpointPlace& place, const RunConfig& config, int membership) {
  if (place.resume != CheckpointPlace::Resume::kNewest) return std::nullopt;
  const CheckpointFolder folder(place.folder);
  std::vector<std::uint64_t> steps = folder.steps();
  for (; !steps.empty(); steps.pop_back()) {
    try {
      Manifest manifest = folder.manifest(steps.back());
      if (manifest.run_id != place.run_id) continue;
      const bool may_differ = config.full_data || manifest.membership != membership;
      for (const RankFile& file : manifest.ranks) {
        if (may_differ) verify_rank_file(folder.of_step(manifest.step), file);
      }
      return manifest;
    } catch (const ConfigError&) {
      continue;  // restore() reports it
    }
  }
  return std::nullopt;
}

/// Makes a checkpoint of the states that ranks have left; if it cannot, the last checkpoint stands.
void take_left_states(const CheckpointPlace& place, const RunConfig& config) {
  if (!config.elastic || !config.checkpoint || place.resume != CheckpointPlace::Resume::kNewest) return;
  try {
    (void)complete_rescue(CheckpointFolder(place.folder), place.run_id, config.checkpoint->keep);
  } catch (const ConfigError&) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace

int membership_at_start(const std::optional<CheckpointPlace>& place, const RunConfig& config,
                        comm::Communicator& group) {
  int membership = config.start ? config.start->membership : 0;
  if (!place) return membership;
  if (group.rank() == 0) {
    take_left_states(*place, config);
    if (const auto manifest = newest_intact(*place, config, membership)) {
      membership = manifest->membership + (continues(*manifest, config.parallel) ? 0 : 1);
    }
  }
  return static_cast<int>(number_of_root(static_cast<std::uint64_t>(membership), group, "epoch"));
}

std::optional<Manifest> newest_checkpoint(const std::optional<CheckpointPlace>& place, const RunConfig& config) {
  if (!place) return std::nullopt;
  take_left_states(*place, config);
  return newest_intact(*place, config, 0);
}

std::uint64_t step_at_start(const std::optional<CheckpointPlace>& place, const RunConfig& config) {
  const std::optional<Manifest> manifest = newest_checkpoint(place, config);
  if (manifest) return manifest->step;
  return config.start ? config.start->step : 0;
}

}  // namespace droptest::experiments
