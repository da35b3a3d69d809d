// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/step_samples.h"

#include <string>

#include "experiments/training/replica_divergence.h"

namespace droptest::experiments {
namespace {

/// Only its own messages can make a copy of the tied embedding differ from its owner's values.
TiedCopies tied_copies(const RunConfig& config) {
  return config.network.of(sim::TrafficClass::kEmbeddingGradient) ? TiedCopies::kCompared : TiedCopies::kLeftOut;
}

}  // namespace

void StepSamples::after_update(FinishedStep& finished) {
  if (!is_multiple(finished.step, config_.record.sample_every_steps)) return;
  const StepProfile::Scope scope(profile_, TrainerPhase::kSampling);
  const Attendance& there = there_.now();
  MetricsLine& line = finished.line;
  finished.is_logged = true;
  // The parameters that passes gathered are gone by now; the owners' values are equal everywhere.
  if (!config_.sharding.shards_values() && there.takes_part) {
    const ReplicaDivergence divergence =
        measure_replica_divergence(model_.parameters(), *there.groups, tied_copies(config_));
    line.divergence = divergence.all;
    line.divergence_groups = divergence.groups;
    model_.release_parameters();
  }
  for (const comm::ClassSample& sampled : network_.take_samples()) {
    line.classes[std::string(sim::traffic_class_name(sampled.traffic_class))] = {sampled.nmse, sampled.cosine};
  }
  for (const comm::ClassStatistics& of_class :
       network_.collect_statistics(comm::LossyCommunicator::LinkDetail::kOmit)) {
    const comm::LossCounts total = of_class.total();
    line.losses[std::string(sim::traffic_class_name(of_class.traffic_class))] = {
        total.packets, total.lost_packets, total.configured_rate(), total.realised_rate(), total.z()};
  }
}

}  // namespace droptest::experiments
