// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "comm/json/json_text.h"
#include "experiments/data/example_set.h"
#include "experiments/data/sample_plan.h"
#include "experiments/data/sample_table.h"
#include "experiments/data/shard_list.h"
#include "experiments/spec/read_resolved.h"
#include "experiments/spec/section_resolvers.h"
#include "models/optimizer.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

constexpr std::uint64_t kMostSteps = 1'000'000'000'000;  // the schema's

void resolve_optimizer(Resolution& resolution, json& training) {
  const bool is_sgd = training["optimizer"] == "sgd";
  const json given = resolution.given.value("training", json::object());
  const models::OptimizerConfig usual;
  for (const auto& [of_adamw, value] :
       {std::pair("beta1", usual.beta1), std::pair("beta2", usual.beta2), std::pair("epsilon", usual.epsilon)}) {
    // Resolved specs have the usual values.
    if (!is_sgd || !given.contains(of_adamw) || given[of_adamw] == value) continue;
    resolution.report(std::string("/training/") + of_adamw, "got " + quote_json(given[of_adamw]) +
                                                                ", which \"sgd\" has no use for, want it absent, or "
                                                                "/training/optimizer \"adamw\"");
  }
  if (is_sgd) return;
  if (given.contains("momentum")) {
    resolution.report("/training/momentum",
                      "got " + quote_json(given["momentum"]) +
                          ", which \"adamw\" has no use for, want it absent, or /training/optimizer \"sgd\"");
  }
  training.erase("optimizer");
  training.erase("momentum");
}

void resolve_dropout(Resolution& resolution, json& training) {
  if (!training.contains("dropout")) return;
  json& dropout = training["dropout"];
  if (dropout.is_number()) dropout = {{"attention", dropout}, {"residual", dropout}, {"embedding", dropout}};
  const bool is_on = std::any_of(dropout.begin(), dropout.end(), [](const json& p) { return p != 0; });
  const auto attention = resolution.config.kernels.find("attention");
  if (dropout["attention"] != 0 && attention != resolution.config.kernels.end() && !attention->second.library.empty()) {
    resolution.report("/training/dropout",
                      "got " + quote_json(resolution.given["training"]["dropout"]) +
                          " with the library of /kernels/attention, whose interface has no dropout; want 0 "
                          "for attention, or a kernel of droptest");
  }
  if (!is_on) training.erase("dropout");
}

/// Sequences of all replicas -> micro-batches of each.
void resolve_batch(Resolution& resolution, json& training) {
  if (!training.contains("global_batch_sequences")) return;
  const auto wanted = training["global_batch_sequences"].get<std::uint64_t>();
  training.erase("global_batch_sequences");
  const auto at_once =
      training["batch_sequences"].get<std::uint64_t>() * static_cast<std::uint64_t>(resolution.config.parallel.data);
  const std::string pointer = "/training/global_batch_sequences";
  if (resolution.given.at("training").contains("accumulation")) {
    resolution.report(pointer, "got " + std::to_string(wanted) + " and /training/accumulation, want one of the two");
  } else if (wanted % at_once != 0) {
    const std::uint64_t below = wanted / at_once * at_once;
    resolution.report(pointer, "got " + std::to_string(wanted) + ", want a multiple of " + std::to_string(at_once) +
                                   ", the sequences of a micro-batch of all replicas: for example " +
                                   (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + at_once));
  } else if (wanted / at_once > 1048576) {
    resolution.report(pointer, "got " + std::to_string(wanted) + ", want at most 1048576 micro-batches of " +
                                   std::to_string(at_once) + " sequences");
  } else {
    training["accumulation"] = wanted / at_once;
  }
}

}  // namespace

void resolve_training(Resolution& resolution) {
  json& training = resolution.spec["training"];
  const int context = resolution.config.model.context;
  if (!training.contains("sequence_tokens")) training["sequence_tokens"] = context;
  if (training["sequence_tokens"].get<int>() > context) {
    resolution.report("/training/sequence_tokens", "got " + quote_json(training["sequence_tokens"]) +
                                                       ", want at most " + std::to_string(context) +
                                                       ", the model's context");
  }
  resolve_precision(resolution);
  resolve_batch(resolution, training);
  resolve_optimizer(resolution, training);
  resolve_dropout(resolution, training);
  resolve_tensor_rules(resolution);
  resolution.config.sharding.micro_batches = training["accumulation"].get<int>();
  if (training["gradient_norm"] == "own" && resolution.config.sharding.shards_state()) {
    resolution.report("/training/gradient_norm", R"(got "own", want "agreed" with /parallel/zero )" +
                                                     std::to_string(resolution.config.sharding.zero) +
                                                     ", where no replica has all gradients");
  }
  if (training["gradient_norm"] == "agreed" || resolution.config.parallel.gradient_ranks() == 1)
    training.erase("gradient_norm");
  if (resolution.config.sharding.micro_batches == 1) {
    resolution.config.sharding.reduce = models::ShardOptions::Reduce::kAfterLast;
    resolution.spec["parallel"].erase("reduce");
  }
  resolve_epochs(resolution);
  resolve_schedule(resolution);
}

void resolve_epochs(Resolution& resolution) {
  json& spec = resolution.spec;
  json& training = spec["training"];
  const json of_training = resolution.given.value("training", json::object());
  const bool examples = spec["data"].contains("examples");
  if (!spec["data"].contains("shards") && !examples) {
    for (const char* member : {"epochs", "drop_last"}) {
      if (of_training.contains(member)) {
        resolution.report(std::string("/training/") + member,
                          "got " + quote_json(of_training[member]) +
                              ", want it absent, /data/shards or /data/examples: training reads one file at random "
                              "places");
      }
    }
    training.erase("drop_last");
    return;
  }
  if (training["drop_last"] == false) training.erase("drop_last");
  const bool has_epochs = training.contains("epochs");
  DataConfig data;
  read_data(spec["data"], data);
  const bool is_listed = !examples && !data.shards->files.empty();
  const bool drops = training.contains("drop_last");
  if (resolution.has_errors() || (!is_listed && !has_epochs && !(examples && drops))) return;
  std::uint64_t of_examples = 0;
  if (!is_listed) {
    try {
      if (examples) {
        of_examples = count_training_examples(*data.examples, data.validation_fraction);
      } else {
        list_shards(data);
      }
    } catch (const ConfigError&) {
      // A spec may be checked on a machine without its files. It then has enough steps for its schedule.
      const std::uint64_t warmup = training["warmup_steps"].get<std::uint64_t>();
      const json& schedule = training["schedule"];
      const std::uint64_t decay = schedule.is_object() ? schedule.value("decay_steps", std::uint64_t{0}) : 0;
      training["steps"] = std::max(training["steps"].get<std::uint64_t>(), std::min(kMostSteps, warmup + decay + 1));
      return;
    }
  }
  try {
    const std::uint64_t samples = examples ? of_examples
                                           : SampleTable(data.shards->files, data.shards->token_bytes(),
                                                         held_out_tokens(*data.shards, data.validation_fraction),
                                                         training["sequence_tokens"].get<int>())
                                                 .samples();
    const std::uint64_t batch = training["batch_sequences"].get<std::uint64_t>() *
                                training["accumulation"].get<std::uint64_t>() *
                                static_cast<std::uint64_t>(resolution.config.parallel.data);
    const std::string samples_text =
        std::to_string(samples) + " samples in global batches of " + std::to_string(batch) + " sequences";
    SamplePlan::Rules rules;
    rules.last_batch = training.contains("drop_last") ? LastBatch::kDropped : LastBatch::kTrained;
    if (rules.last_batch == LastBatch::kDropped && batch > samples) {
      resolution.report("/training/drop_last", "got true with " + samples_text + ", which leaves nothing to train on");
      return;
    }
    if (!has_epochs) return;
    rules.epochs = training["epochs"].get<std::uint64_t>();
    if (samples / batch > kMostSteps / rules.epochs - 1) {
      resolution.report("/training/epochs", "got " + training["epochs"].dump() + " of " + samples_text +
                                                ", want at most " + std::to_string(kMostSteps) + " steps");
      return;
    }
    const std::uint64_t steps = *SamplePlan(rules, samples, batch).steps_left(0);
    // A run that starts from a checkpoint may have had other global batches: it ends with its data.
    if (spec.contains("start") && of_training.contains("steps")) return;
    if (of_training.contains("steps") && of_training["steps"] != steps) {
      resolution.report("/training/steps", "got " + quote_json(of_training["steps"]) + ", but /training/epochs " +
                                               training["epochs"].dump() + " of " + samples_text + " are " +
                                               std::to_string(steps) + " steps; want one of the two members");
    }
    training["steps"] = steps;
  } catch (const ConfigError& error) {
    resolution.report("/data/shards", error.what());
  }
}

void resolve_schedule(Resolution& resolution) {
  json& training = resolution.spec["training"];
  json& schedule = training["schedule"];
  if (schedule.is_string()) schedule = {{"kind", schedule}};
  const std::string kind = schedule["kind"];
  const std::map<std::string, std::string> owners = {{"decay_steps", "warmup_stable_decay"}, {"points", "table"}};
  for (const auto& [member, owner] : owners) {
    if (kind == owner || !schedule.contains(member)) continue;
    resolution.report("/training/schedule/" + member, "got " + quote_json(schedule[member]) + ", which \"" + kind +
                                                          "\" has no use for, want it absent, or kind \"" + owner +
                                                          "\"");
  }
  const auto steps = training["steps"].get<std::uint64_t>();
  const auto warmup = training["warmup_steps"].get<std::uint64_t>();
  const double peak = training["learning_rate"].get<double>();
  if (warmup >= steps) {
    resolution.report("/training/warmup_steps", "got " + quote_json(training["warmup_steps"]) +
                                                    ", want less than steps, " + quote_json(training["steps"]) +
                                                    ": the learning rate would never reach its peak");
    return;
  }
  const auto end_at = [&](double rate) {
    if (training.contains("final_learning_rate") && training["final_learning_rate"] != rate) {
      resolution.report("/training/final_learning_rate", "got " + quote_json(training["final_learning_rate"]) +
                                                             ", but the schedule \"" + kind + "\" ends at " +
                                                             quote_json(json(rate)) + ", want it absent");
    }
    training["final_learning_rate"] = rate;
  };
  if (kind == "table") {
    if (!schedule.contains("points")) {
      resolution.report("/training/schedule/points", "got nothing, want the points of the table");
      return;
    }
    const json& points = schedule["points"];
    for (std::size_t i = 1; i < points.size(); ++i) {
      if (points[i]["step"].get<std::uint64_t>() > points[i - 1]["step"].get<std::uint64_t>()) continue;
      resolution.report("/training/schedule/points/" + std::to_string(i) + "/step",
                        "got " + quote_json(points[i]["step"]) + ", want more than the " +
                            quote_json(points[i - 1]["step"]) + " of the point before");
    }
    if (warmup != 0) {
      resolution.report("/training/warmup_steps", "got " + quote_json(training["warmup_steps"]) +
                                                      ", want 0 with a table, whose points have the warm-up, too");
    }
    end_at(peak * points.back()["factor"].get<double>());
  } else if (kind == "constant") {
    end_at(peak);
  } else if (!training.contains("final_learning_rate")) {
    training["final_learning_rate"] = peak / 10;
  }
  if (kind == "warmup_stable_decay") {
    const std::uint64_t most = steps - warmup;
    if (!schedule.contains("decay_steps")) schedule["decay_steps"] = std::max<std::uint64_t>(1, most / 10);
    if (schedule["decay_steps"].get<std::uint64_t>() > most) {
      resolution.report("/training/schedule/decay_steps", "got " + quote_json(schedule["decay_steps"]) +
                                                              ", want at most the " + std::to_string(most) +
                                                              " steps after the warm-up");
    }
  } else if (kind != "table") {
    schedule = kind;
  }
  if (kind == "cosine") training.erase("schedule");
}

}  // namespace droptest::experiments
