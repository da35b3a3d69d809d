// SPDX-License-Identifier: Apache-2.0
// Runs that continue from a checkpoint without one part of their state: each part is missed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/json/read_file.h"
#include "comm/spec/sha256.h"
#include "experiments/files/crc32c.h"
#include "experiments/records/diagnostics_record.h"
#include "experiments/records/loss_statistics_record.h"
#include "experiments/records/run_records.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/resumed_runs.h"
#include "tests/experiments/state_parts.h"
#include "tests/sanitizers.h"

namespace droptest::experiments::dropped_state_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The whole output of a run, without wall time and memory.
std::string account(const ResumedRun& run, const ResolvedRun& resolved) {
  const TrainingOutcome& outcome = run.outcome;
  json weights = json::object();
  for (const auto& [name, tensor] : outcome.weights) {
    comm::Sha256 hash;
    hash.add({reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()});
    weights[name] = hash.hex();
  }
  const auto number = [](const auto& value) { return value ? json(*value) : json(); };
  json text = {{"lines", run.lines},
               {"statistics", loss_statistics_json(outcome.statistics, resolved.config.network)},
               {"diagnostics", diagnostics_json(outcome.statistics, resolved.config.network)},
               {"weights", weights},
               {"steps", outcome.steps},
               {"tokens", outcome.tokens},
               {"losses",
                {number(outcome.train_final_loss), number(outcome.validation_final_loss),
                 number(outcome.validation_best_loss), number(outcome.selection_loss)}},
               {"evaluated", {outcome.validation_tokens, outcome.selection_tokens}},
               {"scale", {outcome.skipped_steps, outcome.loss_scale}},
               {"resumed", outcome.resumed_at},
               {"epochs", outcome.earlier_memberships}};
  for (const comm::ClassStatistics& statistics : outcome.statistics) {
    for (const comm::LossCounts& counts : statistics.halves)
      text["counts"].push_back(
          {counts.gaps, json(counts.stretches), counts.expected_lost, counts.expected_lost_variance});
    for (const comm::LayerStatistics& layer : statistics.layers) {
      const comm::SampleSums& sums = layer.samples;
      text["layers"].push_back({layer.layer, layer.steps, layer.untouched_steps, sums.calls, sums.error_energy,
                                sums.exact_energy, sums.result_energy, sums.inner_product, sums.elems, sums.error_sum,
                                sums.divergence_max, sums.divergence_energy, sums.divergence_elems});
    }
  }
  for (const StageFailure& failure : outcome.stage_failures) text["failures"].push_back({failure.step, failure.stage});
  if (outcome.time) {
    const comm::VirtualTime& time = *outcome.time;
    text["time"] = {time.seconds, time.compute_seconds, time.idle_seconds, time.exposed, time.network_seconds,
                    time.packets, time.repeated,        time.timeouts,     time.late};
  }
  if (outcome.started_from) {
    const StartRecord& start = *outcome.started_from;
    text["start"] = {start.run_id, start.step, start.membership, start.copies_max, start.copies_tensors};
  }
  if (outcome.predictions) {
    text["predictions"] = {outcome.predictions->labels, outcome.predictions->predictions,
                           outcome.predictions->confidences};
  }
  if (outcome.data) {
    const DataRecord& data = *outcome.data;
    text["data"] = {data.shards, data.samples, data.position, data.lost_samples};
    for (const LostShard& lost : data.lost_shards)
      text["data"].push_back({lost.file, lost.shard, lost.samples, lost.step, lost.error});
  }
  return text.dump();
}

constexpr std::uint64_t kSteps = 10;

/// A run that was interrupted twice, and the parts of its state that it needs.
class InterruptedRun {
 public:
  /// `begin`: the step of the checkpoint of another run that it starts from; 0: none.
  explicit InterruptedRun(const json& changes, std::uint64_t begin = 0)
      : run_(resolved_run(changes, begin + kSteps)), first_(begin + 2), second_(begin + 6), last_(begin + kSteps) {
    const ResumedRun whole = train_in(run_, folder_.path() + "/whole");
    while (!fs::exists(step("whole", last_))) --last_;
    copy_step("whole", first_, "second");
    TrainingHooks hooks;
    hooks.state = [this](int rank, TrainingState state) {
      TrainingState seen = parts_.recording(rank, std::move(state), static_cast<int>(second_ - first_));
      return parts_at_end_.recording(rank, std::move(seen), static_cast<int>(last_ - first_));
    };
    (void)train_in(run_, folder_.path() + "/second", hooks);
    copy_step("second", last_, "end");
    run_.config.checkpoint->every_steps = 0;
    copy_step("second", second_, "continued");
    copy_step("end", last_, "ended");
    const auto start = std::chrono::steady_clock::now();
    intact_ = intact("continued");
    intact_at_end_ = intact("ended");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    hang_seconds_ = 10 + static_cast<unsigned>(40 * took.count());
    std::vector<std::string> lines;
    for (const json& line : whole.lines) {
      if (line["step"] > second_) lines.push_back(line.dump());
    }
    EXPECT_EQ(intact_.lines, lines);
  }

  std::set<std::string> names() const { return parts_.names(); }
  /// The parts that a resumed run needs: without such a part, the rest of the run differs or ends with an error. Either
  /// all ranks lack the part, or only one rank, so that its links have another end; or the run resumes from its last
  /// step, and its results differ. For each part, a run without only that part has shown this. Most parts in `untried`
  /// are needed, so they are left out one at a time. Of `others`, many are left out at once, and fewer if that makes a
  /// difference.
  std::set<std::string> missed(const std::vector<std::string>& untried, const std::vector<std::string>& others) const {
    std::set<std::string> found;
    for (const std::string& name : untried) {
      if (differs({name}, Drop::kOnAllRanks)) found.insert(name);
    }
    add_missed(others, Drop::kOnAllRanks, found);
    std::vector<std::string> all = untried;
    all.insert(all.end(), others.begin(), others.end());
    for (const Drop drop : {Drop::kOnOneRank, Drop::kAtTheEnd}) {
      std::erase_if(all, [&found](const std::string& name) { return found.contains(name); });
      add_missed(all, drop, found);
    }
    for (const Drop drop : {Drop::kOnAllRanks, Drop::kAtTheEnd})
      EXPECT_FALSE(differs({}, drop)) << "its folder changed";
    return found;
  }
  /// The manifest of the checkpoint after `second()`.
  std::string manifest() const { return step("second", second_) + "/manifest.json"; }
  std::uint64_t second() const { return second_; }

 private:
  std::string step(const std::string& in, std::uint64_t number) const {
    return folder_.path() + "/" + in + "/step-" + std::to_string(number);
  }
  void copy_step(const std::string& from, std::uint64_t number, const std::string& to) const {
    fs::create_directories(folder_.path() + "/" + to);
    fs::copy(step(from, number), step(to, number));
  }

  /// A run that lacks nothing.
  struct Intact {
    std::string account;
    std::vector<std::string> lines;
  };
  Intact intact(const std::string& folder) const {
    const ResumedRun run = train_in(run_, folder_.path() + "/" + folder);
    Intact result{account(run, run_), {}};
    for (const json& line : run.lines) result.lines.push_back(line.dump());
    return result;
  }

  enum class Drop : std::uint8_t { kOnAllRanks, kOnOneRank, kAtTheEnd };
  /// Parts in parts are left out one after another: a container goes with all that it contains.
  void add_missed(const std::vector<std::string>& parts, Drop drop, std::set<std::string>& found) const {
    std::vector<std::string> apart;
    std::vector<std::string> within;
    for (const std::string& name : parts) {
      const bool is_within = std::ranges::any_of(apart, [&](const auto& of) { return name.starts_with(of + "/"); });
      (is_within ? within : apart).push_back(name);
    }
    if (!within.empty()) add_missed(within, drop, found);
    if (!apart.empty() && differs({apart.begin(), apart.end()}, drop)) add_halves(apart, drop, found);
  }
  /// `parts`: together, they are missed.
  void add_halves(std::span<const std::string> parts, Drop drop, std::set<std::string>& found) const {
    if (parts.size() == 1) {
      found.insert(parts.front());
      return;
    }
    for (const auto half : {parts.first(parts.size() / 2), parts.subspan(parts.size() / 2)}) {
      if (differs({half.begin(), half.end()}, drop)) add_halves(half, drop, found);
    }
  }

  /// Runs in a separate process, because a state without one of its parts may violate any check.
  bool differs(const std::set<std::string>& without, Drop drop) const {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(hang_seconds_);
      bool is_equal = false;
      try {
        is_equal = goes_on_equally(without, drop);
      } catch (const std::exception&) {
        is_equal = false;
      }
      ::_exit(is_equal ? 0 : 1);
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child) throw std::runtime_error("no child process");
    return status != 0;
  }
  /// Ends the process at the first line that differs.
  bool goes_on_equally(const std::set<std::string>& without, Drop drop) const {
    const Intact& intact = drop == Drop::kAtTheEnd ? intact_at_end_ : intact_;
    TrainingHooks hooks;
    hooks.state = [this, &without, drop](int rank, TrainingState state) {
      if (drop == Drop::kAtTheEnd) return parts_at_end_.without(without, rank, std::move(state));
      return drop == Drop::kOnOneRank && rank != 0 ? state : parts_.without(without, rank, std::move(state));
    };
    hooks.on_line = [&intact, at = std::size_t{0}](const MetricsLine& line) mutable {
      if (at == intact.lines.size() || comparable_line(line).dump() != intact.lines[at]) ::_exit(1);
      ++at;
    };
    const std::string folder = folder_.path() + (drop == Drop::kAtTheEnd ? "/ended" : "/continued");
    return account(train_in(run_, folder, hooks), run_) == intact.account;
  }

  ResolvedRun run_;
  const TemporaryFolder folder_;
  const std::uint64_t first_;    ///< the run was interrupted after this step before,
  const std::uint64_t second_;   ///< and goes on from this one without a part of its state;
  std::uint64_t last_;           ///< its last step, earlier if it diverges
  unsigned hang_seconds_ = 120;  ///< a run that takes so long waits for messages that nobody sends
  StateParts parts_;
  StateParts parts_at_end_;
  Intact intact_;
  Intact intact_at_end_;
};

/// A shard that matches its manifest, and one that does not.
json damaged_shards(const std::string& folder) {
  json files = json::array();
  for (const char* name : {"a", "b"}) {
    const std::string content = comm::read_file(text_file()).substr(name[0] == 'a' ? 0 : 6000, 6000);
    std::ofstream(folder + "/" + name + ".txt") << content;
    const std::string crc = name[0] == 'b' ? "00000000" : crc_text(crc32c(std::as_bytes(std::span(content))));
    files.push_back({{"file", std::string(name) + ".txt"}, {"bytes", 6000}, {"crc32c", crc}});
  }
  std::ofstream(folder + "/shards.json") << json{{"schema_version", 1}, {"files", files}};
  return {{"text", nullptr},
          {"shards", folder + "/*.txt"},
          {"format", "text"},
          {"manifest", folder + "/shards.json"},
          {"lost_limit", 0.8}};
}

const char* const kTime = R"({"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 1},
                              "compute_milliseconds": 4})";

const char* const kSlowTime = R"({"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 0.01},
                                  "compute_milliseconds": 0.001, "stragglers": {"transfer_p99_over_p50": 2}})";

/// Texts of two classes in a file of the folder.
json labelled_texts(const std::string& folder) {
  std::ofstream file(folder + "/texts.tsv");
  file << "label\ttext\n";
  for (int i = 0; i < 40; ++i) file << (i % 3 == 0 ? "a" : "b") << "\ttext " << i * i % 41 << "\n";
  return {{"text", nullptr}, {"examples", folder + "/texts.tsv"}};
}

/// Together they use all that a checkpoint has.
std::vector<json> runs(const std::string& folder) {
  std::vector<json> all;
  for (const char* changes : {
           R"({"network": {"fill": "stale"}, "parallel": {"tensor": 2, "data": 2, "zero": 1}})",
           R"({"network": {"recovery": {"error_feedback": true, "parity": {"data": 4, "parity": 1}}}})",
           R"({"network": {"compression": {"kind": "int8", "block": 8}}})",
           R"({"network": {"compression": {"kind": "top_k"}, "recovery": {"error_feedback": "ef21"}}})",
           R"({"parallel": {"tensor": 1, "data": 3}, "network": {"path": "contribution", "fill": "count_rescale"},
               "outer": {"every_steps": 4, "fragments": 2, "delay_steps": 3}})",
           R"({"parallel": {"tensor": 1, "pipeline": 2}, "validation": {"network": "lossy", "every_steps": 2},
               "training": {"accumulation": 2, "precision": {"compute": "float16", "message": "float16"},
                            "loss_scale": {"initial": 16777216, "interval": 4, "hysteresis": 2}}})",
           R"({"parallel": {"tensor": 1, "pipeline": 2}, "training": {"accumulation": 2},
               "network": {"loss": {"model": "gilbert_elliott", "loss_rate": "50%", "mean_burst_packets": 300},
                           "recovery": {"protect": {"steps": {"from": 2, "until": 3}}}}})",
           R"({"parallel": {"tensor": 1, "pipeline": 4}, "model": {"layers": 4}, "training": {"accumulation": 2},
               "failures": {"stages": {"rate": 0.9, "replacement": "weighted"}}})",
           R"({"parallel": {"data": 3, "tensor": 1}, "network": {"fill": "stale"},
               "failures": {"replicas": [{"data_rank": 1, "from": 3, "until": 8}]}})",
           R"({"network": {"burst_scope": "message",
                           "loss": {"model": "gilbert_elliott", "loss_rate": "50%", "mean_burst_packets": 40}},
               "validation": {"selection_tokens": 128}})",
       }) {
    all.push_back(json::parse(changes));
  }
  all.push_back({{"data", damaged_shards(folder)}});
  all.push_back({{"task", "classification"}, {"data", labelled_texts(folder)}, {"validation", {{"tokens", nullptr}}}});
  all.push_back(json::parse(R"({"network": {"recovery": {"retransmit": {"protocol": "selective_repeat", "rounds": 1}}},
                                "parallel": {"tensor": 2, "data": 2, "zero": 1}})"));
  all.back()["time"] = json::parse(kTime);
  all.push_back(json::parse(
      R"({"network": {"loss": {"loss_rate": null, "mean_burst_packets": null, "model": "timed_gilbert_elliott", "mean_good_microseconds": 380,
                                                     "mean_bad_microseconds": 20}},
                                "parallel": {"tensor": 1, "pipeline": 2}, "training": {"accumulation": 2}})"));
  all.back()["time"] = json::parse(kTime);
  // Links that send again on a clock, in losses that last while time passes; and stragglers.
  all.push_back(json::parse(
      R"({"network": {"loss": {"loss_rate": null, "mean_burst_packets": null, "model": "timed_gilbert_elliott", "mean_good_microseconds": 900,
                               "mean_bad_microseconds": 60},
                      "recovery": {"retransmit": {"protocol": "selective_repeat", "rounds": 2}}},
          "parallel": {"tensor": 2, "pipeline": 2}, "training": {"accumulation": 2},
          "time": {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 1}, "compute_milliseconds": 1,
                   "stragglers": {"transfer_p99_over_p50": 2}}})"));
  // Messages with separate losses, and ports that are busy when a step ends.
  all.push_back(json::parse(
      R"({"network": {"burst_scope": "message",
                      "loss": {"loss_rate": null, "mean_burst_packets": null, "model": "timed_gilbert_elliott", "mean_good_microseconds": 9000,
                               "mean_bad_microseconds": 600},
                      "recovery": {"retransmit": {"protocol": "selective_repeat", "rounds": 2}}}})"));
  all.back()["time"] = json::parse(kSlowTime);
  all.push_back(json::parse(R"({"parallel": {"tensor": 1, "pipeline": 2}, "training": {"accumulation": 2}})"));
  all.back()["time"] = json::parse(kSlowTime);
  // A deadline, a process that changes with the step, and stale values of a short type.
  all.push_back(json::parse(
      R"({"network": {"fill": "stale",
                      "loss": {"loss_rate": null, "mean_burst_packets": null, "model": "schedule",
                               "phases": [{"from_step": 1, "loss": {"model": "gilbert_elliott", "loss_rate": "5%", "mean_burst_packets": 3}},
                                          {"from_step": 9, "loss": {"model": "bernoulli", "loss_rate": "20%"}}]}},
          "training": {"precision": {"compute": "float16", "message": "float16"},
                       "loss_scale": {"initial": 16777216, "interval": 3, "hysteresis": 2}},
          "parallel": {"tensor": 1, "data": 2, "zero": 1},
          "time": {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 1}, "compute_milliseconds": 1,
                   "deadline_microseconds": 40, "stragglers": {"transfer_p99_over_p50": 2}}})"));
  // Messages of types of 16 bits over tensor ranks.
  all.push_back(json::parse(
      R"({"network": {"fill": "stale"}, "training": {"precision": {"compute": "float16", "message": "float16"}}})"));
  // Overflows until the run has diverged.
  all.push_back(json::parse(
      R"({"training": {"precision": {"compute": "float16"},
                       "loss_scale": {"initial": 1e30, "give_up_after": 9}}})"));
  all.push_back(json::parse(
      R"({"parallel": {"tensor": 1, "data": 2, "zero": 1},
          "training": {"precision": {"compute": "float16", "message": "float16"},
                       "loss_scale": {"initial": 1e9, "hysteresis": 1}}})"));
  // Messages that are under way while the next steps are computed.
  all.push_back(json::parse(
      R"({"parallel": {"tensor": 1, "data": 3}, "outer": {"every_steps": 4, "fragments": 4, "delay_steps": 3},
          "network": {"path": "contribution", "fill": "count_rescale",
                      "loss": {"loss_rate": null, "mean_burst_packets": null, "model": "timed_gilbert_elliott",
                               "mean_good_microseconds": 900, "mean_bad_microseconds": 100}}})"));
  all.back()["time"] = json::parse(kSlowTime);
  // Messages of gradients that follow one another at once.
  all.push_back(json::parse(
      R"({"parallel": {"tensor": 1, "data": 2},
          "network": {"path": "contribution", "fill": "count_rescale",
                      "loss": {"loss_rate": null, "mean_burst_packets": null, "model": "timed_gilbert_elliott",
                               "mean_good_microseconds": 900, "mean_bad_microseconds": 100},
                      "recovery": {"retransmit": {"protocol": "selective_repeat", "rounds": 1}}}})"));
  all.back()["time"] = json::parse(kSlowTime);
  // Messages between two ranks of a ring, with separate losses and with those of their links.
  for (const char* scope : {"message", "link"}) {
    all.push_back(json::parse(
        R"({"parallel": {"tensor": 1, "sequence": 2, "sequence_kind": "ring"},
            "network": {"loss": {"loss_rate": null, "mean_burst_packets": null, "model": "timed_gilbert_elliott",
                                 "mean_good_microseconds": 9000, "mean_bad_microseconds": 600},
                        "recovery": {"retransmit": {"protocol": "selective_repeat", "rounds": 1}}}})"));
    all.back()["network"]["burst_scope"] = scope;
    all.back()["time"] = json::parse(kSlowTime);
  }
  return all;
}

/// Parts that no run here misses, as patterns, and why.
const std::vector<std::pair<const char*, const char*>>& without_effect() {
  static const std::vector<std::pair<const char*, const char*>> all = {
      {".*(LinkPosition|CollectiveTResendingLink)/3:optional.*", "the next message sets it again"},
      {".*VirtualClock/2:optional.*", "for states within a step: LossState.ClocksGoOnWithTheirRepetitionsAndDeadlines"},
      {".*RunCounts/3:map", "gaps of 2^24 packets and more"},
      {".*ScatteredRuns/0:RunCounts/4:map", "stretches that ended: of 256 others that wait to be lengthened"},
      {".*ScatteredRStretch/1:unsigned long",
       "joined with a stretch before it, as within a step: LinkCounts.GoOnFromAStateWithinAStep"},
      {"network/0:RankState/5:unsigned long",
       "1,024 steps without a collection of verdicts, which each checkpoint makes"},
      {".*ResultSampler/1:array/SampleSums/([056789]|1[01]):?.*", "samples of lines have only NMSE and cosine"},
      {".*ResultSampler/2:map/.*CodingErrors/.*", "statistics of layers have no errors of compressions"},
      {".*ResultSampler/2:map/.*EndErrors/.*", "statistics of layers have no errors of ends"},
      {".*ResultSampler/0:array/SampleSums/[56]:double", "the bias is recorded of layers, not of classes"},
      {".*CodingErrors/2:unsigned long", "pairs that are out of range, of which there are none"},
      {"progress/4:TrainingHistory/[567]:.*|progress/5:RescueState/.*",
       "for the state that a rank leaves when another one dies: Rescue.*"},
      {"progress/[78]:double", "wall time"},
      {"progress/4:TrainingHistory/1:VirtualTime/.*", "each line measures it again"},
      {"progress/4:TrainingHistory/2:optional/1:StartRecord/2:int", "equal to the default in these runs"},
      {"progress/9:TrainingData/[01]:.*", "compared with the own value, which is equal"},
      {".*LastLeft/1:double", "each evaluation here begins later than the packets of the one before left"},
      {".*VirtualCPorts/0:double", "a rank waits until its messages have left"},
      {".*CollectiveTiming/2:map/pair/1:CollectiveTResendingLink/2:.*",
       "between two messages of a rank to another one is more than a tick"},
      {"model/rounded values", "on the host, each pass rounds the values again"},
      {".*VerdictRCalls/0:map", "empty, because a checkpoint collects the verdicts before"},
  };
  return all;
}

bool has_no_effect(const std::string& name) {
  return std::ranges::any_of(without_effect(),
                             [&name](const auto& entry) { return std::regex_match(name, std::regex(entry.first)); });
}

TEST(DroppedState, OfEachPartIsMissed) {
  if (kAddressSanitizer) GTEST_SKIP() << "hundreds of child processes, which are slow with sanitizers";
  const TemporaryFolder folder;
  std::set<std::string> unnoticed;
  std::set<std::string> noticed;
  const auto drop_each = [&](const InterruptedRun& run) {
    std::vector<std::string> untried;
    std::vector<std::string> others;
    for (const std::string& name : run.names()) {
      if (noticed.contains(name) || has_no_effect(name)) continue;
      (unnoticed.contains(name) ? others : untried).push_back(name);
    }
    unnoticed.insert(untried.begin(), untried.end());
    for (const std::string& name : run.missed(untried, others)) {
      noticed.insert(name);
      unnoticed.erase(name);
    }
  };
  for (const json& changes : runs(folder.path())) {
    SCOPED_TRACE(changes.dump());
    InterruptedRun run(changes);
    drop_each(run);
    if (!changes.contains("time")) continue;
    json next = changes;
    next["start"] = {{"manifest", run.manifest()}};
    next["parallel"]["data"] = 3;
    InterruptedRun started(next, run.second());
    drop_each(started);
  }
  for (const std::string& name : unnoticed) ADD_FAILURE() << name << ": no run misses it";
}

}  // namespace
}  // namespace droptest::experiments::dropped_state_test
