// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/execute_run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "comm/backend_registry.h"
#include "comm/device/stream.h"
#include "comm/json/json_text.h"
#include "comm/nccl/nccl_backend.h"
#include "comm/rendezvous/launch_environment.h"
#include "comm/rendezvous/tcp_connection.h"
#include "comm/run_ranks.h"
#include "comm/spec/sha256.h"
#include "experiments/checkpoint/rescue.h"
#include "experiments/data/corpus.h"
#include "experiments/files/atomic_file.h"
#include "experiments/files/file_lock.h"
#include "experiments/process/rank_processes.h"
#include "experiments/records/metrics_tail.h"
#include "experiments/records/provenance.h"
#include "experiments/run/choose_rendezvous.h"
#include "experiments/run/elastic.h"
#include "experiments/run/execute_command.h"
#include "experiments/run/hold_points.h"
#include "experiments/run/repetition.h"
#include "experiments/run/restart_policy.h"
#include "experiments/run/run_recorder.h"
#include "experiments/run/sigterm_watch.h"
#include "experiments/spec/recorded_files.h"
#include "experiments/training/run_device.h"
#include "experiments/training/train_run.h"
#include "experiments/training/training_data.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr std::chrono::milliseconds kStopPollInterval{50};

/// Shared by execute_run and the rank threads, so that no other process comes in while a thread can write.
using SharedLock = std::shared_ptr<const FileLock>;

/// The hooks that write a run's records. All arguments are borrowed, but for `recorder` on other ranks than 0: null.
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
  // The other ranks wait.
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

/// Whether a request to stop is the trainer's to follow: after its step, with a checkpoint.
bool stops_itself(const RunConfig& config) {
  return config.checkpoint && config.checkpoint->on_signal == CheckpointConfig::OnSignal::kTake;
}

/// After the data was opened: what another program puts in its place from now on is not read. Throws: ConfigError.
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

[[noreturn]] void throw_stopped(const RunDirectory& directory) {
  throw StoppedError(directory.path + ": stopped before its end");
}

nlohmann::json run_threads(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options,
                           const SharedLock& lock) {
  // Shared by the caller and the rank threads.
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

[[noreturn]] void throw_busy(const RunDirectory& directory) {
  throw BusyError(busy_text(directory.path, lock_holder(directory.lock())) +
                  "; try again once it has ended, or see --if-busy");
}

/// The lock of the run's folder, or nothing where it has to be waited for longer than that. Throws: BusyError.
SharedLock take_lock(const RunDirectory& directory, const ExecuteOptions& options,
                     std::optional<std::chrono::steady_clock::time_point> until = std::nullopt) {
  std::optional<FileLock> lock;
  if (options.if_busy == IfBusy::kWait) {
    lock = FileLock::wait_for(
        directory.lock(),
        [&](const std::string& holder) { options.say_waiting(busy_text(directory.path, holder) + "; waiting for it"); },
        [&options, until] {
          return options.stop_requested() || (until && std::chrono::steady_clock::now() >= *until);
        });
  } else {
    lock = FileLock::try_take(directory.lock(), FileLock::Mode::kExclusive);
    if (!lock) throw_busy(directory);
  }
  return lock ? std::make_shared<const FileLock>(std::move(*lock)) : nullptr;
}

/// The state of the run's folder as rank 0 found it, for all ranks. kOursAgain: the records go to its folder `again`.
enum class FolderState : std::uint64_t { kOurs, kOursAgain, kFinished, kLacking, kBusy };

/// The run is finished, but lacks what is asked for: its result stays.
class LackingError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// `missing` is empty where rank 0 alone knows.
[[noreturn]] void throw_lacking(const RunDirectory& directory, const std::vector<std::string>& missing) {
  std::string records;
  for (const std::string& one : missing) records += (records.empty() ? ": " : ", ") + one;
  throw LackingError(directory.path + ": finished, but without records that the spec asks for" +
                     (missing.empty() ? ", as rank 0 found" : records) + "; --again runs it once more, from the start");
}

/// Whether there is nothing to do. Holds the lock. Throws: LackingError for a step of a finished run without
/// Again::kYes.
bool is_done(const RunDirectory& directory, const ResolvedRun& run, const ExecuteOptions& options) {
  if (!options.from_step) return is_settled(directory, run, options.again);
  if (options.again == Again::kNo && has_result(directory)) {
    throw LackingError(finished_text(directory, *options.from_step));
  }
  return false;
}

/// Ranks: all. Only rank 0 needs access to the folder, and it decides for all. While it waits, it sends to the others
/// more often than their timeout. Takes the lock on rank 0.
FolderState agree_on_folder(comm::Communicator& group, const ResolvedRun& run, const RunDirectory& directory,
                            const ExecuteOptions& options, SharedLock& lock) {
  const std::chrono::milliseconds timeout = run.config.backend.timeout;
  ExecuteOptions told_once = options;
  std::vector<std::string> missing;
  for (;;) {
    auto state = static_cast<std::uint64_t>(FolderState::kOurs);
    if (group.rank() == 0 && options.lock == ExecuteOptions::Lock::kTake) {
      lock = take_lock(directory, told_once, std::chrono::steady_clock::now() + timeout / 4);
      told_once.say_waiting = [](const std::string&) {};
      if (!lock) state = static_cast<std::uint64_t>(FolderState::kBusy);
    }
    const bool takes_lock = options.lock == ExecuteOptions::Lock::kTake;
    if (group.rank() == 0 && state == static_cast<std::uint64_t>(FolderState::kOurs)) {
      if (takes_lock) complete_repetition(directory);
      if (takes_lock) (void)read_summary(directory, options.say_problem);
      if (is_done(directory, run, options)) {
        if (takes_lock) missing = missing_records(directory, run);
        state = static_cast<std::uint64_t>(missing.empty() ? FolderState::kFinished : FolderState::kLacking);
      } else if (takes_lock &&
                 prepare_attempt(run, directory, options.resume, options.from_step).path != directory.path) {
        state = static_cast<std::uint64_t>(FolderState::kOursAgain);
      }
    }
    group.broadcast(comm::Tensor(std::span<std::uint64_t>(&state, 1)), 0,
                    {sim::TrafficClass::kControl, "state of the run's folder", -1});
    if (static_cast<FolderState>(state) == FolderState::kLacking) throw_lacking(directory, missing);
    if (static_cast<FolderState>(state) != FolderState::kBusy) return static_cast<FolderState>(state);
  }
}

/// Where ranks meet when the spec names no place.
std::string default_rendezvous(const RunDirectory& directory) { return directory.path + "/rendezvous"; }

/// This process is one rank. Returns the summary on rank 0, null elsewhere.
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
    // A parent that started the ranks asked for it, and knows.
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

/// Removes a folder at the end of its scope.
class RemovedAtEnd {
 public:
  explicit RemovedAtEnd(std::string path) : path_(std::move(path)) {}
  ~RemovedAtEnd() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  RemovedAtEnd(const RemovedAtEnd&) = delete;
  RemovedAtEnd& operator=(const RemovedAtEnd&) = delete;

 private:
  std::string path_;
};

/// The state that ranks left when another one died becomes a checkpoint; where it cannot, the last one stands.
void take_rescue(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options) {
  if (!run.config.elastic || !run.config.checkpoint) return;
  try {
    (void)complete_rescue(CheckpointFolder(directory.checkpoints()), run.run_id, run.config.checkpoint->keep);
  } catch (const ConfigError& error) {
    options.say_problem(std::string("state of the ranks that live: ") + error.what());
  }
}

/// The hashes of the run's files as they are now, for its ranks: files that have changed are read here, where no rank
/// waits meanwhile. Rank 0 says what is wrong with them.
std::string hashes_of_now(const ResolvedRun& run, FileHashes& files) {
  const std::vector<std::string> paths = recorded_files(run.spec);
  for (const std::string& path : paths) {
    try {
      (void)files.of(path);
    } catch (const ConfigError&) {
      continue;
    }
  }
  return files.known_of(paths).dump();
}

/// Starts a process for each rank and waits for them.
nlohmann::json run_processes(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options,
                             const SharedLock& lock) {
  DROPTEST_CHECK(!options.worker_command.empty(), "no command to start ranks with");
  make_directories(directory.path);
  write_spec_record(directory, run);
  RankProcessesOptions ranks;
  ranks.command = options.worker_command;
  ranks.command.push_back(directory.path);
  ranks.command.push_back("--point");
  ranks.command.insert(ranks.command.end(), {options.point.dump(), "--labels", run.labels.dump(), "--warnings",
                                             warnings_json(run.warnings).dump(), "--locked"});
  ranks.telling_code = options.user_error_code;
  if (lock) ranks.kept_descriptor = lock->descriptor();
  if (const auto& named = run.config.backend.rendezvous; named && named->kind == comm::Rendezvous::Kind::kTcp) {
    if (named->host.empty()) ranks.environment["MASTER_ADDR"] = "127.0.0.1";
    if (named->port == 0) ranks.environment["MASTER_PORT"] = std::to_string(comm::unused_port());
  }
  ranks.log_directory = directory.path + "/ranks";
  if (run.config.elastic) ranks.grace = std::max(ranks.grace, run.config.backend.timeout);  // they leave their state
  const RemovedAtEnd rendezvous(default_rendezvous(directory));
  if (options.resume == CheckpointPlace::Resume::kNewest) take_rescue(run, directory, options);
  MetricsTail metrics(directory.metrics());
  // A run that continues begins with lines that it has. A step that is done again has another time.
  using StepAndSeconds = std::pair<std::uint64_t, double>;
  const auto id_of = [](const NumberedLine& line) {
    return StepAndSeconds(line.value.value("step", std::uint64_t{0}), line.value.value("seconds", 0.0));
  };
  std::vector<StepAndSeconds> old;  // in ascending order, as in the file
  metrics.update([&](const NumberedLine& line) { old.push_back(id_of(line)); });
  std::optional<std::uint64_t> passed;  // step of the last line
  const auto pass_lines = [&] {
    metrics.update([&](const NumberedLine& line) {
      if (std::binary_search(old.begin(), old.end(), id_of(line))) return;
      const std::uint64_t step = id_of(line).first;
      if (passed && step <= *passed) return;  // of an attempt before
      passed = step;
      options.on_line(line.value);
    });
  };
  ranks.while_running = [&] {
    pass_lines();
    if (!options.stop_requested()) return RankProcessesOptions::Next::kGoOn;
    if (!stops_itself(run.config)) throw_stopped(directory);
    return RankProcessesOptions::Next::kTellRoot;
  };
  ranks.on_line = [&options](const std::string& line) {
    constexpr std::string_view kProblem = "droptest: ";
    if (!line.starts_with(kProblem) || line.starts_with("droptest: error: ")) return;
    options.say_problem(line.substr(kProblem.size()));
  };
  const int ranks_of_replica = run.config.parallel.world_size() / run.config.parallel.data;
  int replicas = run.config.parallel.data;
  const CheckpointFolder checkpoints(directory.checkpoints());
  const auto newest = [&checkpoints] {
    const std::vector<std::uint64_t> steps = checkpoints.steps();
    return steps.empty() ? std::uint64_t{0} : steps.back();
  };
  std::uint64_t reached = newest();
  std::uint64_t states_not_left = 0;
  const std::vector<std::string> of_every_attempt = ranks.command;
  for (int failed = 0;;) {
    ranks.world_size = replicas * ranks_of_replica;
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    ranks.launch_id = std::to_string(::getpid()) + "-" + std::to_string(now);
    ranks.command = of_every_attempt;
    ranks.command.insert(ranks.command.end(), {"--states-not-left", std::to_string(states_not_left)});
    if (options.files != nullptr) {
      ranks.command.insert(ranks.command.end(), {"--files", hashes_of_now(run, *options.files)});
    }
    try {
      run_rank_processes(ranks);
      const bool lacks_replicas = replicas < run.config.parallel.data;
      if (!lacks_replicas || options.stop_requested() || read_summary(directory)) break;
      replicas = run.config.parallel.data;
    } catch (const RankFailure& failure) {
      if (has_result(directory)) {
        options.say_problem(std::string(failure.what()) + ", after the end of the run");
        break;
      }
      take_rescue(run, directory, options);
      if (newest() > reached) failed = 0;
      reached = newest();
      pass_lines();
      if (could_leave_state(run.config, replicas, failure.statuses) && passed.value_or(0) > reached) {
        options.say_problem("no replica has left its state in " + checkpoints.rescue() + ": steps " +
                            std::to_string(reached + 1) + " to " + std::to_string(*passed) + " are done again");
        ++states_not_left;
      }
      const auto pause = pause_before_restart(run.config.restart, ++failed);
      if (pause && failure.status.signal == 0 && failure.status.code == options.user_error_code) {
        options.say_problem("no further attempt: a spec, an option or a file is wrong");
        throw;
      }
      if (!pause) throw;
      // Without a checkpoint nothing is lost by a start with all replicas.
      if (reached > 0) replicas = replicas_after_failure(run.config, replicas);
      options.say_problem(std::string(failure.what()) + "; attempt " + std::to_string(failed + 1) + " of " +
                          std::to_string(run.config.restart->attempts + 1) +
                          (run.config.elastic ? ", with data " + std::to_string(replicas) + "," : "") + " begins in " +
                          std::to_string(pause->count()) + " ms");
      const auto until = std::chrono::steady_clock::now() + *pause;
      while (std::chrono::steady_clock::now() < until) {
        if (options.stop_requested()) throw_stopped(directory);
        std::this_thread::sleep_for(
            std::min<std::chrono::steady_clock::duration>(kStopPollInterval, until - std::chrono::steady_clock::now()));
      }
    }
  }
  pass_lines();
  const std::optional<nlohmann::json> summary = read_summary(directory);
  if (!summary && options.stop_requested()) throw_stopped(directory);
  if (!summary) throw CommError("all ranks ended without an error, but rank 0 wrote no " + directory.summary());
  return *summary;
}

}  // namespace

bool may_resume(const RunDirectory& directory, CheckpointPlace::Resume resume) {
  return resume == CheckpointPlace::Resume::kNewest && !CheckpointFolder(directory.checkpoints()).steps().empty();
}

void forget_attempts(const RunDirectory& directory) {
  CheckpointFolder(directory.checkpoints()).forget_after(0);
  std::error_code ignored;
  std::filesystem::remove(directory.metrics(), ignored);
}

nlohmann::json execute_run(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options) {
  const comm::BackendEntry& backend = comm::backend_entry(run.config.backend.name);
  if (!backend.built) backend.connect({});  // throws, and lists the built backends
  require_run_device(run.config);
  std::optional<comm::LaunchEnvironment> launch;
  try {
    launch = comm::launch_environment(comm::process_environment());
  } catch (const ConfigError&) {
    if (backend.rank_kind == comm::RankKind::kProcesses) throw;
  }
  if (backend.rank_kind == comm::RankKind::kThreads) {
    if (launch && launch->world_size > 1) {
      throw ConfigError("/backend/name: got \"" + run.config.backend.name +
                        "\", whose ranks are threads of one process, but " + launch->launcher + " started " +
                        std::to_string(launch->world_size) +
                        " processes, each of which would train all of the run; start one, or use gloo");
    }
    launch.reset();
  }
  std::optional<SigtermWatch> sigterm;
  if (launch) sigterm.emplace();
  const bool takes_lock = options.lock == ExecuteOptions::Lock::kTake;
  SharedLock lock;
  RunDirectory attempt = directory;
  if (!launch && takes_lock) {
    lock = take_lock(directory, options);
    if (!lock) throw_stopped(directory);
    complete_repetition(directory);
    if (is_done(directory, run, options)) return *read_summary(directory);
    attempt = prepare_attempt(run, directory, options.resume, options.from_step);
  }
  try {
    if (launch) return run_as_rank(run, directory, options, *launch, *sigterm, lock);
    nlohmann::json summary;
    if (run.config.command) {
      summary = execute_command(run, attempt, options);
    } else if (backend.rank_kind == comm::RankKind::kThreads) {
      summary = run_threads(run, attempt, options, lock);
    } else {
      summary = run_processes(run, attempt, options, lock);
    }
    if (attempt.path != directory.path) complete_repetition(directory);
    return summary;
  } catch (const BusyError&) {
    throw;  // the folder is another's
  } catch (const LackingError&) {
    throw;  // the result stays
  } catch (const StoppedError&) {
    throw;  // the records so far stay as they are
  } catch (const std::exception& error) {
    if (launch && launch->rank != 0) throw;
    if (takes_lock && !lock) {  // the ranks did not get as far as the lock
      std::optional<FileLock> late = FileLock::try_take(directory.lock(), FileLock::Mode::kExclusive);
      if (!late || has_result(directory)) throw;
      lock = std::make_shared<const FileLock>(std::move(*late));
    }
    const RunDirectory failed = takes_lock ? attempt_folder(directory) : directory;
    if (has_result(failed)) throw;  // a result is never replaced by a failure
    record_failure(run, failed, options.point, error.what());
    throw;
  }
}

}  // namespace droptest::experiments
