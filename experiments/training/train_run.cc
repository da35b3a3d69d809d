// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/train_run.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/rank_agreement.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/attention_agreement.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr std::string_view kAtWork = "ranks at work";
enum class Work : std::uint64_t { kGoesOn, kHasEnded };

/// A message from rank 0 to the ranks that wait, sent more often than they time out.
void tell(comm::Communicator& group, const std::vector<int>& ranks, Work work) {
  auto number = static_cast<std::uint64_t>(work);
  for (const int rank : ranks) {
    group.send(comm::Tensor(std::span(&number, 1)), rank, {sim::TrafficClass::kControl, kAtWork, -1});
  }
}

void await_end_of_work(comm::Communicator& group) {
  auto number = static_cast<std::uint64_t>(Work::kGoesOn);
  while (static_cast<Work>(number) == Work::kGoesOn) {
    group.recv(comm::Tensor(std::span(&number, 1)), 0, {sim::TrafficClass::kControl, kAtWork, -1});
  }
}

bool leave_with_shards(const RunConfig& config) {
  return config.failures && !config.failures->replicas.empty() && config.failures->replicas.front().reload_step;
}

/// train() in parts, each with the replicas that are there.
TrainingOutcome train_in_parts(const ResolvedRun& run, const RunConfig& config, const Corpus& corpus,
                               comm::Communicator& group, const TrainingHooks& all_hooks) {
  if (!leave_with_shards(config)) return train(config, corpus, group, all_hooks);
  DROPTEST_CHECK(all_hooks.checkpoints.has_value(),
                 "replicas leave with shards of the state, but no checkpoint has it");
  const std::vector<ReplicaAbsence>& absences = config.failures->replicas;
  TrainingHooks hooks = all_hooks;
  CheckpointTotals before;
  MemoryRecord memory;
  for (;;) {
    const std::uint64_t own = group.rank() == 0 ? step_at_start(hooks.checkpoints, config) : 0;
    const std::uint64_t begin = number_of_root(own, group, "step after which a run begins");
    const std::vector<int> absent = absent_replicas(absences, begin + 1);
    RunConfig part = with_replicas(run, config.parallel.data - static_cast<int>(absent.size()));
    part.failures.reset();
    part.device_index = config.device_index;
    part.kernels = config.kernels;
    part.attention_is_replaced = config.attention_is_replaced;
    // Ranks get new numbers, and links belong to numbers: the first ranks train, whichever replica is missing.
    const bool is_there = group.rank() < part.parallel.world_size();
    std::vector<int> waiting(static_cast<std::size_t>(group.world_size() - part.parallel.world_size()));
    std::iota(waiting.begin(), waiting.end(), part.parallel.world_size());
    hooks.replicas_change_after = [&](std::uint64_t step) {
      return absent_replicas(absences, step + 1) == absent ? std::nullopt
                                                           : std::optional(Checkpointer::Because::kRequired);
    };
    hooks.is_at_work = [&] { tell(group, waiting, Work::kGoesOn); };
    TrainingOutcome outcome;
    const auto there = group.split(is_there ? 0 : -1, group.rank());
    if (is_there) {
      outcome = train(part, corpus, *there, hooks);
      if (group.rank() == 0) tell(group, waiting, Work::kHasEnded);
    } else {
      await_end_of_work(group);
    }
    for (const auto& [kind, peak] : memory.of_model) outcome.memory.note(kind, peak.bytes, peak.step);
    memory = outcome.memory;
    before.completed = outcome.checkpoints.completed += before.completed;
    before.failed = outcome.checkpoints.failed += before.failed;
    hooks.states_not_left = 0;  // only the first part counts them
    before.snapshot_seconds = outcome.checkpoints.snapshot_seconds += before.snapshot_seconds;
    const bool goes_on = number_of_root(outcome.replicas_change ? 1 : 0, group, "change of replicas") != 0;
    const std::uint64_t stopped = number_of_root(outcome.stopped_after.value_or(0), group, "step of a stop");
    if (!goes_on) {
      if (stopped != 0) outcome.stopped_after = stopped;
      return outcome;
    }
    hooks.checkpoints->resume = CheckpointPlace::Resume::kNewest;
  }
}

}  // namespace

TrainingOutcome train_run(const ResolvedRun& run, const RunConfig& config, const Corpus& corpus,
                          comm::Communicator& group, const TrainingHooks& hooks) {
  RunConfig agreed = config;
  const std::optional<ReplacedKernel> replaced = agree_on_attention(agreed, hooks.checkpoints, group);
  if (replaced && group.rank() == 0) hooks.on_replaced_kernel(*replaced);
  TrainingOutcome outcome = train_in_parts(run, agreed, corpus, group, hooks);
  outcome.replaced_kernel = replaced;
  return outcome;
}

}  // namespace droptest::experiments
