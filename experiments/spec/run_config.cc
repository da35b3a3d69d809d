// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/run_config.h"

#include <cstddef>
#include <set>

namespace droptest::experiments {

std::vector<int> absent_replicas(const std::vector<ReplicaAbsence>& absences, std::uint64_t step) {
  std::set<int> absent;
  for (const ReplicaAbsence& absence : absences) {
    if (step >= absence.first_without() && (!absence.until || step < *absence.until)) absent.insert(absence.data_rank);
  }
  return {absent.begin(), absent.end()};
}

models::SlotOptions MemoryConfig::options(int layers) const {
  models::SlotOptions options;
  options.place = place;
  options.traffic = traffic;
  if (recompute == Recompute::kSaveAll) return options;
  options.recompute.resize(static_cast<std::size_t>(layers), Recompute::kSaveAll);
  for (int layer = every - 1; layer < layers; layer += every) {
    options.recompute[static_cast<std::size_t>(layer)] = recompute;
  }
  return options;
}

models::SlotOptions slot_options(const RunConfig& config) {
  models::SlotOptions options = config.memory.options(config.model.layers);
  options.tensor_sequence = config.tensor_sequence;
  return options;
}

}  // namespace droptest::experiments
