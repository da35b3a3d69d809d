// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/step_log.h"

#include <cstddef>
#include <string>
#include <utility>

#include "comm/rank_agreement.h"

namespace droptest::experiments {
namespace {

constexpr std::size_t kFinalLossLines = 10;

}  // namespace

StepLog::StepLog(const RunConfig& config, const Measured& measured, TrainingHistory& history,
                 const TrainingHooks& hooks, std::function<void(MetricsLine&)> put_totals, TrainingOutcome& outcome)
    : config_(config),
      measured_(measured),
      history_(history),
      hooks_(hooks),
      put_totals_(std::move(put_totals)),
      outcome_(outcome) {}

void StepLog::set_seconds(double seconds) {
  start_ = Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void StepLog::after_update(FinishedStep& finished) {
  note_memory(finished.step);
  const bool is_due = is_multiple(finished.step, config_.record.every_steps);
  if (finished.is_last || finished.is_logged || is_due) write(finished.line, finished.is_last);
}

void StepLog::note_memory(std::uint64_t step) {
  const models::MemoryUse use = measured_.model.memory_use();
  MemoryRecord& memory = outcome_.memory;
  memory.note("parameters", use.parameters, step);
  memory.note("gradients", use.gradients, step);
  memory.note("optimizer", use.optimizer, step);
  memory.note("activations", use.activations, step);
  if (use.offload > 0) memory.note("offload_buffers", use.offload, step);
  const comm::LossLayerBuffers layer = measured_.network.buffers();
  memory.note("collectives", layer.messages.bytes, step);
  memory.note("loss_layer", layer.remembered, step);
  if (measured_.workers) memory.note("outer", measured_.workers->bytes(), step);
  memory.pools = {{"slots", measured_.model.slot_use()}, {"messages", layer.messages}, {"calls", layer.calls}};
  memory.note_process(step);
}

void StepLog::note_device_memory(std::uint64_t step) {
  if (const auto bytes = measured_.usage.device_peak_bytes()) outcome_.memory.note_device(*bytes, step);
}

std::optional<comm::VirtualTime> StepLog::collect_time() {
  const std::optional<comm::VirtualTime> own = measured_.network.collect_time();
  return own ? std::optional(history_.with_time_before(*own)) : std::nullopt;
}

void StepLog::write(MetricsLine& line, bool is_last) {
  const StepProfile::Scope scope(measured_.profile, TrainerPhase::kRecords);
  line.tokens = outcome_.tokens;
  line.seconds = seconds();
  put_totals_(line);
  outcome_.time = collect_time();
  if (outcome_.time) line.virtual_seconds = outcome_.time->seconds;
  if (line.train_loss) {
    last_losses_.push_back(*line.train_loss);
    if (last_losses_.size() > kFinalLossLines) last_losses_.erase(last_losses_.begin());
  }
  RankUsage usage = measured_.usage.take(measured_.metered.use());
  note_device_memory(line.step);
  measured_.profile.put_seconds(usage);
  line.ranks = gather_usage(usage, measured_.profile.take_calls(measured_.clock.origin()), measured_.group);
  measured_.clock.met();
  if (measured_.group.rank() == 0) hooks_.on_line(line);
  if (can_request(config_.alerts)) follow_alerts(is_last);
}

void StepLog::follow_alerts(bool is_last) {
  constexpr std::uint64_t kCheckpoint = 1;
  constexpr std::uint64_t kStop = 2;
  AlertRequest request;
  if (measured_.group.rank() == 0) request = hooks_.take_alert_request();
  const std::uint64_t own = (request.checkpoint ? kCheckpoint : 0) | (request.stop.empty() ? 0 : kStop);
  const std::uint64_t asked = number_of_root(own, measured_.group, "actions of alerts");
  is_checkpoint_asked_ = is_checkpoint_asked_ || (asked & kCheckpoint) != 0;
  const bool goes_on = !is_last && !outcome_.diverged_step;
  if ((asked & kStop) != 0 && goes_on) outcome_.alert = text_of_root(request.stop, measured_.group, "alert");
}

bool StepLog::take_checkpoint_request() { return std::exchange(is_checkpoint_asked_, false); }

}  // namespace droptest::experiments
