// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/training_ranks.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "comm/backend_registry.h"
#include "comm/json/json_text.h"
#include "comm/nccl/nccl_backend.h"
#include "comm/run_ranks.h"
#include "comm/spec/sha256.h"
#include "experiments/data/corpus.h"
#include "experiments/files/atomic_file.h"
#include "experiments/records/provenance.h"
#include "experiments/run/attempt_series.h"
#include "experiments/run/choose_rendezvous.h"
#include "experiments/run/hold_points.h"
#include "experiments/run/repetition.h"
#include "experiments/run/run_recorder.h"
#include "experiments/spec/recorded_files.h"
#include "experiments/training/train_run.h"
#include "experiments/training/trainer.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// The hooks that write a run's records. All arguments are borrowed. `recorder`: null on other ranks than 0.
TrainingHooks recording_hooks(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options,
                              RunRecorder* recorder) {
  TrainingHooks hooks;
  hooks.on_start = [recorder](std::optional<std::uint64_t> step) { recorder->start(step); };
  hooks.on_line = [recorder, on_line = options.on_line](const MetricsLine& line) {
    const nlohmann::json text = to_json_line(line);
    recorder->append(text);
    on_line(text);
  };
  hooks.on_trace = [recorder](const std::vector<nlohmann::json>& ranks) { recorder->write_trace(ranks); };
  hooks.take_alert_request = [recorder] { return recorder->alerts().take_request(); };
  // The other ranks wait while rank 0 waits for commands.
  constexpr std::chrono::milliseconds kCommandPatience{10000};
  hooks.on_end = [recorder, patience = std::min(kCommandPatience, run.config.backend.timeout / 4)] {
    recorder->alerts().finish(patience);
  };
  hooks.on_replaced_kernel = [say = options.say_problem](const ReplacedKernel& kernel) {
    say("warning: /kernels/" + kernel.operation + ": " + kernel.text());
  };
  hooks.on_checkpoint_error = [say = options.say_problem](std::uint64_t step, const std::string& error) {
    say("checkpoint of step " + std::to_string(step) + ": " + error);
  };
  hooks.on_lost_shard = [say = options.say_problem](const LostShard& lost) {
    say("step " + std::to_string(lost.step) + ": " + lost.file + " is set aside with " + std::to_string(lost.samples) +
        " samples: " + lost.error);
  };
  hooks.states_not_left = options.states_not_left;
  if (const auto holds = HoldPoints::of(comm::process_environment())) {
    hooks.before_step = [holds = *holds](int rank, std::uint64_t step) { holds.wait_before_step(rank, step); };
    hooks.after_forward = [holds = *holds](int rank, std::uint64_t step) { holds.wait_after_forward(rank, step); };
  }
  if (!run.config.checkpoint) return hooks;
  hooks.stop_requested = options.stop_requested;
  const Provenance build = build_provenance();
  hooks.checkpoints = CheckpointPlace{directory.checkpoints(),
                                      run.config.name,
                                      run.run_id,
                                      comm::sha256_hex(comm::canonical_json(run.spec)),
                                      {{"version", build.version}, {"commit", build.commit}},
                                      options.resume};
  return hooks;
}

/// Called after the data was opened: later files in its place are not read. Throws: ConfigError.
void compare_files(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options) {
  if (options.files != nullptr) {
    require_recorded_files(run, directory.spec(), *options.files, ShardFiles::kLeftToTraining);
  }
}

/// The objects that the rank threads of a run share. They outlive a thread that stalled and was left behind.
struct ThreadedRun {
  ThreadedRun(const ResolvedRun& resolved, const RunDirectory& directory, const ExecuteOptions& options,
              SharedLock held)
      : lock(std::move(held)),
        run(resolved),
        recorder(run, directory, options.point, options.say_problem),
        hooks(recording_hooks(run, directory, options, &recorder)),
        corpus(load_corpus(run.config)) {}
  const SharedLock lock;
  const ResolvedRun run;
  RunRecorder recorder;
  const TrainingHooks hooks;
  const Corpus corpus;
  TrainingOutcome outcome;
};

}  // namespace

nlohmann::json run_threads(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options,
                           const SharedLock& lock) {
  // The caller and the rank threads share these objects.
  const auto shared = std::make_shared<ThreadedRun>(run, directory, options, lock);
  compare_files(run, directory, options);
  std::packaged_task<void()> task([shared] {
    const RunConfig& config = shared->run.config;
    comm::run_ranks(config.parallel.world_size(), config.backend.timeout, [shared](comm::Communicator& group) {
      TrainingOutcome outcome = train_run(shared->run, shared->run.config, shared->corpus, group, shared->hooks);
      if (group.rank() == 0) shared->outcome = std::move(outcome);
    });
  });
  std::future<void> ended = task.get_future();
  std::thread ranks(std::move(task));
  while (ended.wait_for(kStopPollInterval) != std::future_status::ready) {
    if (!options.stop_requested() || stops_itself(run.config)) continue;
    ranks.detach();
    throw_stopped(directory);
  }
  ranks.join();
  ended.get();
  if (shared->outcome.stopped_after) throw_stopped(directory);
  return shared->recorder.finish(shared->outcome);
}

std::string default_rendezvous(const RunDirectory& directory) { return directory.path + "/rendezvous"; }

nlohmann::json run_as_rank(const ResolvedRun& run, const RunDirectory& folder, const ExecuteOptions& execute,
                           const comm::LaunchEnvironment& launch, SigtermWatch& sigterm, SharedLock& lock) {
  const int replicas = replicas_of_launch(run.config, launch.world_size, launch.launcher);
  RunConfig config = with_replicas(run, replicas);
  comm::ProcessGroupOptions options;
  options.rank = launch.rank;
  options.world_size = launch.world_size;
  options.local_rank = launch.local_rank;
  options.timeout = config.backend.timeout;
  const comm::Environment environment = comm::process_environment();
  options.interface_name = comm::gloo_interface(environment);
  options.rendezvous = choose_rendezvous(config.backend.rendezvous, environment, default_rendezvous(folder));
  options.rendezvous.launch_id = run.run_id + (launch.launch_id.empty() ? "" : "." + launch.launch_id);
  if (options.rendezvous.kind == comm::Rendezvous::Kind::kFile) make_directories(options.rendezvous.directory);

  std::unique_ptr<comm::Communicator> group = comm::backend_entry(config.backend.name).connect(options);
  config.device_index = comm::nccl_device(*group);
  const SigtermWatch::Protection protection(
      sigterm, *group, stops_itself(config) ? SigtermWatch::First::kCheckpoint : SigtermWatch::First::kNothing);
  try {
    const FolderState state = agree_on_folder(*group, run, folder, execute, lock);
    if (state == FolderState::kFinished) return launch.rank == 0 ? *read_summary(folder) : nlohmann::json();
    const RunDirectory directory = state == FolderState::kOursAgain ? RunDirectory{folder.again()} : folder;
    std::optional<RunRecorder> recorder;
    if (launch.rank == 0) recorder.emplace(run, directory, execute.point, execute.say_problem);
    const Corpus corpus = load_corpus(config);
    if (launch.rank == 0) compare_files(run, directory, execute);
    TrainingHooks hooks = recording_hooks(run, directory, execute, recorder ? &*recorder : nullptr);
    if (stops_itself(config)) hooks.stop_requested = [&sigterm] { return sigterm.was_told(); };
    // A parent that started the ranks can start more.
    if (execute.lock != ExecuteOptions::Lock::kTake && replicas < run.config.parallel.data) {
      hooks.replicas_change_after = [every = config.checkpoint->every_steps](std::uint64_t step) {
        return step % every == 0 ? std::optional(Checkpointer::Because::kRequested) : std::nullopt;
      };
    }
    const TrainingOutcome outcome = train_run(run, config, corpus, *group, hooks);
    const bool stopped = outcome.stopped_after.has_value();
    nlohmann::json summary = recorder && !stopped ? recorder->finish(outcome) : nlohmann::json();
    if (!summary.is_null() && state == FolderState::kOursAgain) complete_repetition(folder);
    // No rank leaves before the records are there: a failed disk of rank 0 is a failure of every rank.
    try {
      group->barrier({sim::TrafficClass::kControl, "end of run", -1});
    } catch (const CommError& error) {
      if (summary.is_null()) throw;
      execute.say_problem(std::string("after the end of the run: ") + error.what());  // the result is there
    }
    sigterm.release();
    group.reset();
    // Removed by the last rank to come here: a folder that is not empty stays.
    std::error_code ignored;
    std::filesystem::remove(default_rendezvous(folder), ignored);
    // A parent that started the ranks has asked for the stop itself.
    if (stopped && execute.lock == ExecuteOptions::Lock::kTake) throw_stopped(folder);
    return summary;
  } catch (const LackingError&) {
    throw;  // on every rank
  } catch (const StoppedError&) {
    throw;
  } catch (const std::exception& error) {
    if (group) group->abort(error.what());
    throw;
  }
}

}  // namespace droptest::experiments
