// SPDX-License-Identifier: Apache-2.0
// The state of a rank after its last update, which it leaves behind if another rank dies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "experiments/checkpoint/checkpointer.h"
#include "experiments/records/metrics.h"
#include "experiments/training/training_history.h"
#include "sim/state_visitor.h"

namespace droptest::experiments {

/// The results of a step that its line has.
struct StepResults {
  std::uint64_t step = 0;
  std::optional<double> train_loss, gradient_norm, learning_rate, loss_scale;
  std::optional<std::uint64_t> skipped_steps;
  std::optional<int> replicas;
  void visit_state(sim::StateVisitor& visitor) {
    visit_values(visitor, step, train_loss, gradient_norm, learning_rate, loss_scale, skipped_steps, replicas);
  }
};

/// Replicas that are whole go on from the state after the last update (checkpoint/rescue.h). With ZeRO 0 only one
/// message of a step follows the update: it gives the first stage the new values of the tied embedding. If it is
/// missing, the state is still that of the update, since other layouts take the values of the embedding's owner.
/// Owner: one rank's trainer.
class RescueState {
 public:
  using VisitProgress = std::function<void(sim::StateVisitor&)>;

  /// Whether the run's ranks leave their states. kNo: keep() does nothing.
  enum class Leaves : std::uint8_t { kNo, kYes };
  explicit RescueState(Leaves leaves) : leaves_(leaves) {}

  /// Called after an update. Keeps the current progress with the results of the step, because a rank may die before the
  /// step's line is written. `visit_progress` calls visit_state() of this object, too.
  void keep(const MetricsLine& line, const VisitProgress& visit_progress);
  /// There is nothing to leave: a rank that dies sends the run back to its last checkpoint.
  void forget() { updated_.reset(); }
  /// The step of the state that leave() would leave; absent: none.
  std::optional<std::uint64_t> step() const;
  /// Throws: ConfigError of Checkpointer::leave().
  void leave(Checkpointer& checkpointer, const TrainingState& state, const TrainingHistory& history);

  /// The line of the step that a restored rescue has and metrics.jsonl lacks; absent: none.
  std::optional<MetricsLine> take_unrecorded();
  bool has_unrecorded() const { return unrecorded_.has_value(); }
  void visit_state(sim::StateVisitor& visitor) { visit_value(visitor, unrecorded_); }

 private:
  struct Updated {
    std::uint64_t step;
    std::vector<std::byte> progress;
  };

  Leaves leaves_;
  std::optional<StepResults> unrecorded_;
  std::optional<Updated> updated_;  ///< the progress after the last update that was kept
};

}  // namespace droptest::experiments
