// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/sweep_runner.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/allowed_cores.h"
#include "comm/json/read_file.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/process/child_process.h"
#include "experiments/process/core_shares.h"
#include "experiments/process/last_words.h"
#include "experiments/process/program_tree.h"
#include "experiments/records/metrics_tail.h"
#include "experiments/run/attempt_series.h"
#include "experiments/run/execute_run.h"
#include "experiments/run/repetition.h"
#include "experiments/run/run_recorder.h"
#include "experiments/spec/recorded_files.h"
#include "experiments/spec/resolve.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSweepPollInterval{20};
constexpr std::chrono::milliseconds kProgressInterval{250};
constexpr std::chrono::milliseconds kBusyPollInterval{250};
constexpr std::chrono::milliseconds kStopGrace{2000};
constexpr std::chrono::milliseconds kCheckpointGrace{20000};

/// A run that is going on.
struct RunningRun {
  std::size_t index;
  RunDirectory directory;  ///< the folder of this attempt
  FileLock lock;
  ChildProcess process;
  MetricsTail metrics;
  std::size_t core_share;
};

/// Whether a request to stop ended the run's process and comes to this one, too: Slurm sends it to all processes of a
/// job, in any order.
bool is_stopped_with_us(const ExitStatus& status, const std::function<bool()>& stop_requested) {
  const auto ended_it = [&status](int signal) { return status.signal == signal || status.code == 128 + signal; };
  if (!ended_it(SIGTERM) && !ended_it(SIGUSR1) && !ended_it(SIGHUP)) return false;
  const Clock::time_point deadline = Clock::now() + kStopGrace;
  while (!stop_requested() && Clock::now() < deadline) std::this_thread::sleep_for(kSweepPollInterval);
  return stop_requested();
}

/// Failed attempts of a run since its newest checkpoint.
struct Attempts {
  int failed = 0;
  std::uint64_t reached = 0;
};

std::uint64_t newest_checkpoint(const RunDirectory& directory) {
  const std::vector<std::uint64_t> steps = CheckpointFolder(directory.checkpoints()).steps();
  return steps.empty() ? 0 : steps.back();
}

class SweepRunner {
 public:
  SweepRunner(const SweepPlan& plan, const SweepOptions& options)
      : plan_(plan),
        options_(options),
        cores_(options.pin == SweepOptions::Pin::kCores ? comm::allowed_cores() : std::vector<int>()),
        core_shares_(cores_, 0) {
    progress_.runs.resize(plan.runs.size());
    for (std::size_t i = 0; i < plan.runs.size(); ++i) {
      SweepRun& run = progress_.runs[i];
      run.steps = plan.runs[i].run.config.training.steps;
      run.same_as = plan.runs[i].same_as;
      if (run.same_as != i) continue;
      if (is_settled(directory_of(i), plan.runs[i].run, options.again, options.stopped, options.say_unread)) {
        take_result(i, SweepRun::State::kFoundFinished);
      } else {
        waiting_.push_back(i);
      }
    }
    core_shares_ = CoreShares(cores_, std::min(static_cast<std::size_t>(options.jobs), waiting_.size()));
  }

  /// Whether some run had no result when this was made.
  bool has_work() const { return !waiting_.empty(); }

  SweepProgress run(const std::function<void(const SweepProgress&)>& on_progress,
                    const std::function<bool()>& stop_requested) {
    if (options_.if_busy == IfBusy::kFail) refuse_busy();
    const bool has_programs = std::any_of(plan_.runs.begin(), plan_.runs.end(),
                                          [](const PlannedRun& one) { return one.run.config.command.has_value(); });
    if (has_programs) adopt_orphans();
    Clock::time_point last_report = start_;
    Clock::time_point last_look = start_;
    bool looked_last = false;
    while ((!waiting_.empty() || !running_.empty() || !busy_.empty() || !pausing_.empty()) && !stop_requested()) {
      end_pauses();
      while (!waiting_.empty() && running_.size() < static_cast<std::size_t>(options_.jobs)) {
        with_records([this] { start_next(); });
      }
      const bool last_chance =
          waiting_.empty() && running_.empty() && pausing_.empty() && options_.if_busy != IfBusy::kWait;
      if (last_chance && looked_last) break;
      if (last_chance || Clock::now() - last_look >= kBusyPollInterval) {
        last_look = Clock::now();
        looked_last = last_chance;
        waiting_.splice(waiting_.end(), busy_);
      }
      const bool ended = take_ended(stop_requested);
      if (ended || Clock::now() - last_report >= kProgressInterval) {
        last_report = Clock::now();
        report(on_progress);
      }
      if (!ended) std::this_thread::sleep_for(kSweepPollInterval);
    }
    stop_running();
    report(on_progress);
    return progress_;
  }

 private:
  RunDirectory directory_of(std::size_t index) const {
    return run_directory(options_.out, plan_.name, plan_.runs[index].run.run_id);
  }

  static std::string log_of(const RunDirectory& directory) { return directory.path + "/run.log"; }

  void refuse_busy() const {
    for (const std::size_t index : waiting_) {
      const RunDirectory directory = directory_of(index);
      if (!std::filesystem::exists(directory.lock())) continue;
      if (FileLock::try_take(directory.lock(), FileLock::Mode::kExclusive)) continue;
      throw BusyError(busy_text(directory.path, lock_holder(directory.lock())) + "; nothing was run");
    }
  }

  /// Calls body(), which writes records. If it throws, as on a full disk, no more runs are started, and the running
  /// ones end.
  template <class Body>
  void with_records(const Body& body) {
    try {
      body();
    } catch (const std::exception& error) {
      if (progress_.problem.empty()) progress_.problem = error.what();
      waiting_.clear();
      busy_.clear();
      pausing_.clear();
    }
  }

  /// Runs with a killed process go back to the waiting runs once their pause is over.
  void end_pauses() {
    for (auto pause = pausing_.begin(); pause != pausing_.end();) {
      if (pause->second > Clock::now()) {
        ++pause;
        continue;
      }
      waiting_.push_back(pause->first);
      pause = pausing_.erase(pause);
    }
  }

  /// Starts the first waiting run, unless another process works on it or has finished it.
  void start_next() {
    const std::size_t index = waiting_.front();
    waiting_.pop_front();
    const RunDirectory directory = directory_of(index);
    std::optional<FileLock> lock = FileLock::try_take(directory.lock(), FileLock::Mode::kExclusive);
    if (!lock) {
      progress_.runs[index].state = SweepRun::State::kBusy;
      progress_.runs[index].holder = lock_holder(directory.lock());
      busy_.push_back(index);
      return;
    }
    std::optional<RunDirectory> attempt;
    try {
      attempt = prepare(index);
    } catch (const std::exception& error) {  // the run's own files are at fault: the others go on
      fail(index, error.what());
      return;
    }
    if (attempt) start(index, *attempt, std::move(*lock));
  }

  /// The folder of the next attempt; absent: the run has its result. The caller holds the run's lock.
  std::optional<RunDirectory> prepare(std::size_t index) {
    const PlannedRun& planned = plan_.runs[index];
    const RunDirectory directory = directory_of(index);
    complete_repetition(directory);
    if (is_settled(directory, planned.run, options_.again, options_.stopped)) {
      take_result(index, SweepRun::State::kFoundFinished);
      return std::nullopt;
    }
    if (options_.files != nullptr) (void)resolve(planned.run.spec, directory.spec(), options_.files);
    return prepare_attempt(planned.run, directory, CheckpointPlace::Resume::kNewest);
  }

  void start(std::size_t index, const RunDirectory& attempt, FileLock lock) {
    const PlannedRun& planned = plan_.runs[index];
    write_spec_record(attempt, planned.run);
    std::vector<std::string> command = options_.worker_command;
    command.insert(command.end(), {attempt.path, "--point", planned.point.dump(), "--labels", planned.run.labels.dump(),
                                   "--warnings", warnings_json(planned.run.warnings).dump(), "--locked"});
    if (options_.files != nullptr) {
      command.insert(command.end(), {"--files", options_.files->known_of(recorded_files(planned.run.spec)).dump()});
    }
    attempts_.try_emplace(index, Attempts{0, newest_checkpoint(attempt)});
    const std::size_t share = core_shares_.take();
    const int kept_descriptor = lock.descriptor();
    try {
      running_.push_back(
          {index, attempt, std::move(lock),
           ChildProcess::start({command, {}, log_of(attempt), core_shares_.cores(share), {}, kept_descriptor}),
           MetricsTail(attempt.metrics()), share});
    } catch (...) {
      core_shares_.give_back(share);
      throw;
    }
    progress_.runs[index].state = SweepRun::State::kRunning;
  }

  /// Whether any run ended.
  bool take_ended(const std::function<bool()>& stop_requested) {
    bool any = false;
    for (auto run = running_.begin(); run != running_.end();) {
      const std::optional<ExitStatus> status = run->process.poll();
      if (!status) {
        ++run;
        continue;
      }
      any = true;
      if (is_stopped_with_us(*status, stop_requested)) break;  // stop_running() forgets the run
      with_records([&] { settle(*run, *status); });
      core_shares_.give_back(run->core_share);
      run = running_.erase(run);
    }
    if (any && waiting_.empty()) share_free_cores();
    return any;
  }

  /// Gives all cores to the runs that still run, once no waiting run would take a free share.
  void share_free_cores() {
    if (running_.empty()) return;
    const CoreShares wider(cores_, running_.size());
    std::size_t place = 0;
    for (RunningRun& run : running_) run.process.move_to(wider.cores(place++));
  }

  void settle(const RunningRun& ended, const ExitStatus& status) {
    if (has_result(ended.directory)) {
      std::error_code ignored;
      std::filesystem::remove(log_of(ended.directory), ignored);
      if (ended.directory.path != directory_of(ended.index).path) {
        try {
          complete_repetition(directory_of(ended.index));
        } catch (const std::exception& error) {
          fail(ended.index, error.what());
          return;
        }
      }
      take_result(ended.index, SweepRun::State::kFinished);
      return;
    }
    if (status.signal != 0) end_orphans(ended);
    Attempts& attempts = attempts_[ended.index];
    const std::uint64_t newest = newest_checkpoint(ended.directory);
    if (newest > attempts.reached) attempts = {0, newest};
    const auto pause = pause_before_restart(plan_.runs[ended.index].run.config.restart, ++attempts.failed);
    if (status.signal != 0 && pause && progress_.problem.empty()) {
      progress_.runs[ended.index].state = SweepRun::State::kWaiting;
      pausing_.emplace_back(ended.index, Clock::now() + *pause);
      return;
    }
    // A run that ends by itself writes its summary; a killed run cannot.
    const std::optional<nlohmann::json> summary = read_summary(ended.directory);
    if (!summary || summary->value("status", "") != run_status_name(RunStatus::kFailed)) {
      const std::string words = last_words(log_of(ended.directory));
      fail(ended.index, "the run's process " + status.describe() + (words.empty() ? "" : ": " + words));
      return;
    }
    take_failure(ended.index, *summary);
    SweepRun& run = progress_.runs[ended.index];
    if (options_.stopped == Stopped::kAccept && is_stopped_by_alert(run.summary))
      run.state = SweepRun::State::kFinished;
  }

  /// Ends the processes that a run's program has started: they outlive a worker that is killed.
  void end_orphans(const RunningRun& ended) const {
    if (!plan_.runs[ended.index].run.config.command) return;
    const std::string folder = std::filesystem::absolute(ended.directory.path).lexically_normal().string();
    kill_descendants_with(kRunFolderVariable, folder);
  }

  /// Records why an attempt without a summary of its own has no result.
  void fail(std::size_t index, const std::string& why) {
    progress_.runs[index].state = SweepRun::State::kFailed;  // also if the failure cannot be recorded
    progress_.runs[index].error = why;
    const RunDirectory attempt = attempt_folder(directory_of(index));
    if (has_result(attempt)) return;  // a result is never replaced by a failure
    record_failure(plan_.runs[index].run, attempt, plan_.runs[index].point, why);
    if (const auto summary = read_summary(attempt)) take_failure(index, *summary);
  }

  void take_failure(std::size_t index, const nlohmann::json& summary) {
    SweepRun& run = progress_.runs[index];
    run.state = SweepRun::State::kFailed;
    run.summary = summary;
    run.error = run.summary.value("error", "");
  }

  void take_result(std::size_t index, SweepRun::State state) {
    SweepRun& run = progress_.runs[index];
    run.state = state;
    run.summary = *read_summary(directory_of(index));
    run.step = run.summary.value("steps", std::uint64_t{0});
    if (run.summary.contains("train") && run.summary.at("train").at("final_loss").is_number()) {
      run.train_loss = run.summary.at("train").at("final_loss").get<double>();
    }
  }

  void stop_running() {
    for (RunningRun& run : running_) run.process.tell(SIGTERM);  // at once, so that they stop together
    for (RunningRun& run : running_) {
      const RunConfig& config = plan_.runs[run.index].run.config;
      const auto& checkpoint = config.checkpoint;
      const bool takes = checkpoint && checkpoint->on_signal == CheckpointConfig::OnSignal::kTake;
      run.process.stop(takes ? kCheckpointGrace : config.command ? kProgramGrace + kStopGrace : kStopGrace);
      end_orphans(run);
      std::error_code ignored;
      std::filesystem::remove(log_of(run.directory), ignored);
      progress_.runs[run.index].state = SweepRun::State::kWaiting;
    }
    running_.clear();
  }

  void report(const std::function<void(const SweepProgress&)>& on_progress) {
    for (RunningRun& run : running_) {
      run.metrics.update([](const NumberedLine&) {});
      progress_.runs[run.index].step = run.metrics.step();
      progress_.runs[run.index].train_loss = run.metrics.train_loss();
    }
    for (SweepRun& run : progress_.runs) {
      const SweepRun& original = progress_.runs[run.same_as];
      if (&original != &run) run = original;
    }
    progress_.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    on_progress(progress_);
  }

  const SweepPlan& plan_;
  const SweepOptions& options_;
  const Clock::time_point start_ = Clock::now();
  const std::vector<int> cores_;  ///< cores that runs get; empty: runs are not pinned
  CoreShares core_shares_;
  SweepProgress progress_;
  std::list<std::size_t> waiting_;
  std::list<std::size_t> busy_;  ///< another process is at work on them
  std::list<RunningRun> running_;
  /// The runs that wait for another attempt, each with the end of its pause.
  std::list<std::pair<std::size_t, Clock::time_point>> pausing_;
  std::map<std::size_t, Attempts> attempts_;  ///< the attempts of each run that was started
};

/// Whether sweep.json is that of the plan.
bool is_recorded(const SweepPlan& plan, const std::string& out) {
  const std::string path = sweep_file(out, plan.name);
  return std::filesystem::exists(path) &&
         nlohmann::json::parse(comm::read_file(path), nullptr, false) == sweep_json(plan);
}

/// Writes sweep.json and holds its lock while the sweep goes on. Throws: BusyError if it lists other runs of a sweep
/// that goes on.
FileLock hold_sweep_record(const SweepPlan& plan, const std::string& out) {
  const std::string path = sweep_file(out, plan.name);
  const std::string lock_path = path + ".lock";
  for (;; std::this_thread::sleep_for(kSweepPollInterval)) {
    if (std::optional<FileLock> lock = FileLock::try_take(lock_path, FileLock::Mode::kExclusive)) {
      write_sweep_record(out, plan);
      lock->share();
      return std::move(*lock);
    }
    std::optional<FileLock> lock = FileLock::try_take(lock_path, FileLock::Mode::kShared);
    if (!lock) continue;  // it is being written
    if (is_recorded(plan, out)) {
      lock->share();
      return std::move(*lock);
    }
    throw BusyError(busy_text(path, lock_holder(lock_path)) +
                    ": it lists the runs of that sweep, which are others; wait until it has ended, or give this one "
                    "another /name");
  }
}

bool has_ended(const SweepRun& run) {
  return run.state != SweepRun::State::kWaiting && run.state != SweepRun::State::kRunning &&
         run.state != SweepRun::State::kBusy;
}

}  // namespace

std::size_t SweepProgress::ended() const {
  return static_cast<std::size_t>(std::count_if(runs.begin(), runs.end(), has_ended));
}

std::size_t SweepProgress::failed() const {
  return static_cast<std::size_t>(
      std::count_if(runs.begin(), runs.end(), [](const SweepRun& r) { return r.state == SweepRun::State::kFailed; }));
}

std::size_t SweepProgress::busy() const {
  return static_cast<std::size_t>(
      std::count_if(runs.begin(), runs.end(), [](const SweepRun& r) { return r.state == SweepRun::State::kBusy; }));
}

double SweepProgress::steps_per_second() const {
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].same_as == i && runs[i].state != SweepRun::State::kFoundFinished) done += runs[i].step;
  }
  return seconds > 0 ? static_cast<double>(done) / seconds : 0;
}

std::optional<double> SweepProgress::seconds_left() const {
  std::uint64_t left = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].same_as == i && !has_ended(runs[i])) left += runs[i].steps - std::min(runs[i].steps, runs[i].step);
  }
  const double rate = steps_per_second();
  if (rate == 0) return std::nullopt;
  return static_cast<double>(left) / rate;
}

SweepProgress run_sweep(const SweepPlan& plan, const SweepOptions& options,
                        const std::function<void(const SweepProgress&)>& on_progress,
                        const std::function<bool()>& stop_requested) {
  SweepRunner runner(plan, options);
  // Nothing is written, since the user may have no right to write into the folder.
  if (!runner.has_work() && is_recorded(plan, options.out)) return runner.run(on_progress, stop_requested);
  const FileLock record = hold_sweep_record(plan, options.out);
  return runner.run(on_progress, stop_requested);
}

void record_sweep(const SweepPlan& plan, const std::string& out) { (void)hold_sweep_record(plan, out); }

SweepProgress run_planned(const SweepPlan& plan, const SweepOptions& options,
                          const std::function<void(const SweepProgress&)>& on_progress,
                          const std::function<bool()>& stop_requested) {
  return SweepRunner(plan, options).run(on_progress, stop_requested);
}

}  // namespace droptest::experiments
