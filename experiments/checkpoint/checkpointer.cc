// SPDX-License-Identifier: Apache-2.0
#include "experiments/checkpoint/checkpointer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/rank_agreement.h"
#include "experiments/checkpoint/rescue.h"
#include "experiments/checkpoint/restore.h"
#include "experiments/files/atomic_file.h"
#include "experiments/records/run_records.h"
#include "experiments/spec/kernels_in_use.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr std::uint64_t kNone = ~std::uint64_t{0};
constexpr const char* kError = "error";

bool can_lose(const RunConfig& config, sim::TrafficClass traffic_class) {
  return config.parallel.gradient_ranks() > 1 && config.network.of(traffic_class).has_value();
}

/// The first error of any rank; empty: none has one.
std::string first_error(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) {
    if (!error.empty()) return error;
  }
  return "";
}

/// The time for which a rank works by itself while others wait for it.
std::chrono::milliseconds turn_of(const RunConfig& config) { return config.backend.timeout / 4; }

}  // namespace

Checkpointer::Checkpointer(CheckpointPlace place, const RunConfig& config, int membership, comm::Communicator& group,
                           Report report, std::function<void()> waits)
    : place_(std::move(place)),
      config_(config),
      membership_(membership),
      group_(group),
      report_(std::move(report)),
      waits_(std::move(waits)),
      folder_(place_.folder),
      commands_(config, group, folder_, report_, waits_) {}

Checkpointer::~Checkpointer() {
  if (writing_) writing_->wait();
}

std::optional<int> Checkpointer::replica_of() const {
  if (config_.outer.is_on()) return std::nullopt;  // workers have weights of their own
  // Replicas are equal if all gradients and parameters of all replicas arrive.
  for (const sim::TrafficClass of :
       {sim::TrafficClass::kDpGradient, sim::TrafficClass::kParameterGather, sim::TrafficClass::kEmbeddingGradient}) {
    if (can_lose(config_, of)) return std::nullopt;
  }
  comm::ParallelNumbers coordinates = config_.parallel.coordinates(group_.rank());
  if (coordinates.data == 0 && coordinates.sequence == 0) return std::nullopt;
  coordinates.data = coordinates.sequence = 0;
  return config_.parallel.rank(coordinates);
}

std::optional<Checkpointer::Restored> Checkpointer::restore(const TrainingState& state) {
  std::vector<std::uint64_t> candidates;
  if (is_root()) {
    if (place_.resume == CheckpointPlace::Resume::kNever) folder_.forget_after(0);
    candidates = folder_.steps();
  }
  std::vector<std::uint64_t> damaged;
  std::string errors;
  std::string refusal;
  for (;;) {
    std::uint64_t step = kNone;
    std::string text;
    while (is_root() && !candidates.empty() && text.empty() && refusal.empty()) {
      step = candidates.back();
      candidates.pop_back();
      try {
        const Manifest manifest = folder_.manifest(step);
        if (manifest.run_id != place_.run_id) {
          throw ConfigError(folder_.of_step(step) + ": a checkpoint of run " + manifest.run_id + ", want one of " +
                            place_.run_id);
        }
        if (!config_.full_data && !continues(manifest, config_.parallel)) {
          throw ConfigError(folder_.of_step(step) + ": a checkpoint of " + manifest.parallel.text() + ", want one of " +
                            config_.parallel.text() + ", or an elastic run (/elastic)");
        }
        const std::string own = recorded_attention(config_);
        if (!manifest.attention.empty() && manifest.attention != own) {
          refusal = folder_.of_step(step) + ": attention was computed by " + manifest.attention +
                    ", and here it is by " + own + ", which rounds in another way; `droptest resume " +
                    std::filesystem::path(place_.folder).parent_path().string() +
                    " --set /kernels/attention=flash` begins a run of its own with it, and --fresh this one again";
          break;
        }
        text = manifest_text(manifest);
      } catch (const ConfigError& error) {
        errors += std::string(errors.empty() ? "" : "; ") + error.what();
        report_(step, error.what());
        damaged.push_back(step);
        step = kNone;
      }
    }
    text = text_of_root(text, group_, "manifest of a checkpoint");
    if (text.empty()) break;
    const Manifest manifest = parse_manifest(text, "manifest of rank 0");
    std::optional<RestoredState> restored;
    std::string error;
    const bool is_recut = config_.full_data && !continues(manifest, config_.parallel);
    try {
      const std::string folder = folder_.of_step(manifest.step);
      restored.emplace(is_recut ? RestoredState::recut(folder, manifest, state)
                                : RestoredState::exactly(folder, manifest, group_.rank(), state));
    } catch (const ConfigError& problem) {
      error = problem.what();
    }
    error = first_error(gather_texts(error, group_, "ranks' files of a checkpoint"));
    if (error.empty()) {
      restored->put(state);
      for (const std::uint64_t other : damaged) folder_.set_aside(other);
      if (is_root()) folder_.forget_after(manifest.step);
      return Restored{manifest.step, is_recut ? std::optional(manifest.memberships) : std::nullopt};
    }
    errors += (errors.empty() ? "" : "; ") + error;
    if (!is_root()) continue;
    report_(step, error);
    damaged.push_back(step);
  }
  if (refusal.empty() && !errors.empty()) {
    refusal = place_.folder + ": no checkpoint is intact: " + errors + "; --fresh runs it again from the beginning";
  }
  refusal = text_of_root(refusal, group_, "damaged checkpoints");
  if (!refusal.empty()) throw ConfigError(refusal);
  if (is_root()) folder_.forget_after(0);
  return std::nullopt;
}

void Checkpointer::after_step(std::uint64_t step, const TrainingState& state, Because because) {
  poll(Wait::kNo);
  commands_.poll();
  const std::uint64_t every = config_.checkpoint->every_steps;
  const bool due = every != 0 && step % every == 0;
  if (!due && because == Because::kInterval) return;
  if (because == Because::kRequired) required_step_ = step;
  take(step, state);
  if (because != Because::kInterval || config_.checkpoint->writing == CheckpointConfig::Writing::kAtOnce) {
    poll(Wait::kYes);
  }
}

void Checkpointer::finish() {
  poll(Wait::kYes);
  commands_.await();
}

void Checkpointer::take(std::uint64_t step, const TrainingState& state) {
  poll(Wait::kYes);
  std::string error;
  commands_.await();
  commands_.start(config_.checkpoint->before, step);
  commands_.await();
  if (is_root()) {
    try {
      folder_.begin(step);
    } catch (const ConfigError& problem) {
      error = problem.what();
    }
  }
  // The files of other ranks need the folder.
  error = text_of_root(error, group_, "folder of a checkpoint");
  if (!error.empty()) return fail(step, error);
  writing_memberships_ = state.memberships();
  const Clock::time_point begin = Clock::now();
  auto snapshot = std::make_shared<RankSnapshot>(take_snapshot(state, group_.rank(), replica_of()));
  totals_.snapshot_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  writing_step_ = step;
  writing_ = std::async(std::launch::async, [snapshot, folder = folder_.unfinished(step)] {
    Written written;
    try {
      write_rank_file(folder, snapshot->tensors, snapshot->file);
      written.file = std::move(snapshot->file);
    } catch (const std::exception& problem) {
      written.error = problem.what();
    }
    return written;
  });
}

void Checkpointer::poll(Wait wait) {
  if (!writing_) return;
  const std::chrono::milliseconds patience = wait == Wait::kYes ? turn_of(config_) : std::chrono::milliseconds(0);
  for (;;) {
    std::uint64_t waiting = writing_->wait_for(patience) == std::future_status::ready ? 0 : 1;
    group_.all_reduce(comm::Tensor(std::span<std::uint64_t>(&waiting, 1)), comm::ReduceOp::kSum,
                      {sim::TrafficClass::kControl, "files of a checkpoint", -1});
    if (waiting == 0) break;
    if (wait == Wait::kNo) return;
    if (is_root()) waits_();
  }
  commands_.await();  // the command of the checkpoint before, which may be removed now
  const Written written = writing_->get();
  writing_.reset();
  const std::uint64_t step = writing_step_;
  json own = {{kError, written.error}};
  if (written.error.empty()) own = to_json(written.file);
  const std::vector<std::string> files = gather_texts(own.dump(), group_, "files of a checkpoint");
  std::string error = is_root() ? commit(files) : "";
  error = text_of_root(error, group_, "end of a checkpoint");
  if (!error.empty()) return fail(step, error);
  ++totals_.completed;
  commands_.start(config_.checkpoint->after, step);
}

Manifest Checkpointer::manifest_of(std::uint64_t step, json memberships) const {
  if (!memberships.empty()) memberships.back()["run_id"] = place_.run_id;
  Manifest manifest;
  manifest.step = step;
  manifest.name = place_.name;
  manifest.run_id = place_.run_id;
  manifest.spec_sha256 = place_.spec_sha256;
  manifest.attention = recorded_attention(config_);
  manifest.membership = membership_;
  manifest.parallel = config_.parallel;
  manifest.memberships = std::move(memberships);
  manifest.provenance = place_.provenance;
  return manifest;
}

void Checkpointer::leave(std::uint64_t step, const TrainingState& state, std::vector<std::byte> progress,
                         json memberships) {
  TrainingState alone = state;
  alone.visit_network = [](sim::StateVisitor&) {};  // the next membership has other links
  alone.visit_progress = [&progress](sim::StateVisitor& visitor) { visitor.bytes(progress); };
  leave_rescue(folder_, manifest_of(step, std::move(memberships)), take_snapshot(alone, group_.rank(), std::nullopt));
}

std::string Checkpointer::commit(const std::vector<std::string>& files) {
  Manifest manifest = manifest_of(writing_step_, writing_memberships_);
  try {
    std::uint64_t bytes = 0;
    for (const std::string& text : files) {
      const json file = json::parse(text);
      if (file.contains(kError)) throw ConfigError(file[kError].get<std::string>());
      manifest.ranks.push_back(rank_file_from_json(file, "file of a rank"));
      bytes += manifest.ranks.back().bytes;
    }
    // A run that goes on from the checkpoint keeps the lines up to it.
    const RunDirectory run{std::filesystem::path(place_.folder).parent_path().string()};
    if (std::filesystem::exists(run.metrics())) sync_path(run.metrics());
    folder_.commit(manifest, config_.checkpoint->keep);
    totals_.bytes = bytes;
    return "";
  } catch (const ConfigError& error) {
    folder_.discard(writing_step_);
    return error.what();
  }
}

void Checkpointer::fail(std::uint64_t step, const std::string& error) {
  ++totals_.failed;
  if (is_root()) report_(step, error);
  if (step == required_step_ || config_.checkpoint->on_error == CheckpointConfig::OnError::kStop) {
    throw ConfigError("checkpoint of step " + std::to_string(step) + ": " + error);
  }
}

}  // namespace droptest::experiments
