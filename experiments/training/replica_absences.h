// SPDX-License-Identifier: Apache-2.0
// Replicas of the model that take no part in some of a run's steps.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/parallel_layout.h"
#include "experiments/records/metrics.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/training_model.h"

namespace droptest::experiments {

/// The steps up to `last` that each configured absence has covered, in the order of the config. Absences that begin
/// later are left out.
std::vector<ReplicaAbsenceRecord> absences_until(const RunConfig& config, std::uint64_t last);

/// The number of steps from `first` to `last` that fewer replicas take than the run has at most.
std::uint64_t steps_with_fewer_replicas(const RunConfig& config, std::uint64_t first, std::uint64_t last);

/// The replicas that take a step together, as one of the run's ranks sees them.
struct Attendance {
  std::vector<int> absent;  ///< data ranks of the absent replicas, in order
  int replicas = 1;         ///< replicas that take part
  int index = 0;            ///< the index of this rank's replica among the replicas that take part
  bool takes_part = true;   ///< whether this rank's replica takes part
  /// The groups of the ranks that take part, with their layout. Null if this rank takes no part.
  comm::ParallelGroups* groups = nullptr;
};

/// The groups for each set of replicas that takes a step of the run. Rank 0's replica is in all of them. A replica that
/// comes back takes over the parameters, the optimizer and the numbers of messages of replica 0. Owner: one rank.
/// Ranks: all of the run. Everything is borrowed.
class ReplicaAbsences {
 public:
  /// Splits a group from `network` for each set of replicas that lacks one, in the order of the steps. `all`: the
  /// groups of the whole run.
  ReplicaAbsences(const RunConfig& config, comm::Communicator& network, comm::ParallelGroups& all);

  /// The replicas that take that step; 0: all replicas.
  const Attendance& at(std::uint64_t step) const;

  /// Changes from one attendance to the next, between two steps, with the model of this rank.
  void change(const Attendance& from, const Attendance& to, TrainingModel& model);
  /// The model works with these replicas from now on; its state stays as it is.
  void adopt(const Attendance& attendance, TrainingModel& model) const;

 private:
  struct Part {
    Attendance attendance;
    std::unique_ptr<comm::Communicator> world;
    std::unique_ptr<comm::ParallelGroups> groups;
  };

  const RunConfig& config_;
  comm::ParallelGroups& all_;
  std::vector<std::unique_ptr<Part>> parts_;  ///< one part for each set of replicas; the first one has all replicas
};

}  // namespace droptest::experiments
