// SPDX-License-Identifier: Apache-2.0
// Compares the messages of a step in a dry run with those that training ranks send.
#include "experiments/spec/dry_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/call.h"
#include "comm/run_ranks.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/spec/rank_calls.h"
#include "experiments/spec/rank_groups.h"
#include "experiments/spec/resolve.h"
#include "experiments/training/training_model.h"
#include "models/outer_step.h"
#include "sim/error.h"
#include "tests/experiments/resolved_spec.h"
#include "tests/sanitizers.h"

namespace droptest::experiments::dry_run_test {
namespace {

using comm::DryCall;
using comm::Operation;
using nlohmann::json;
using sim::TrafficClass;

/// Makes the calls, and writes them down as a dry run does.
class NotingCommunicator final : public comm::Communicator {
 public:
  NotingCommunicator(std::unique_ptr<comm::Communicator> notes, comm::Communicator& inner,
                     std::unique_ptr<comm::Communicator> owned = nullptr)
      : notes_(std::move(notes)), inner_(inner), owned_(std::move(owned)) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  std::string_view backend() const override { return inner_.backend(); }
  void run(const comm::CallArguments& arguments) override {
    notes_->run(arguments);
    inner_.run(arguments);
  }
  std::unique_ptr<comm::WorkInFlight> begin(const comm::CallArguments& arguments) override {
    (void)notes_->begin(arguments);
    return inner_.begin(arguments);
  }
  std::unique_ptr<comm::Communicator> split(int color, int key) override { return inner_.split(color, key); }
  std::unique_ptr<comm::Communicator> subgroup(std::span<const int> ranks) override {
    auto notes = notes_->subgroup(ranks);
    auto inner = inner_.subgroup(ranks);
    EXPECT_EQ(notes == nullptr, inner == nullptr);
    if (inner == nullptr) return nullptr;
    comm::Communicator& borrowed = *inner;
    return std::make_unique<NotingCommunicator>(std::move(notes), borrowed, std::move(inner));
  }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  std::unique_ptr<comm::Communicator> notes_;
  comm::Communicator& inner_;
  std::unique_ptr<comm::Communicator> owned_;
};

Batch random_batch(const RunConfig& config, std::mt19937& draws) {
  Batch batch;
  batch.sequences = config.training.batch_sequences;
  batch.length = config.training.sequence_tokens;
  const auto size = static_cast<std::size_t>(batch.sequences) * static_cast<std::size_t>(batch.length);
  for (std::size_t i = 0; i < size; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(draws() % static_cast<unsigned>(config.model.vocabulary)));
  }
  batch.targets = batch.tokens;
  return batch;
}

/// The calls of a rank that trains.
struct Sent : RankCalls {
  std::vector<DryCall> outer_steps;  ///< calls of the outer steps of a run
};

std::vector<DryCall> take_outer_steps(const RunConfig& config, TrainingModel& model, comm::Communicator& workers,
                                      std::vector<DryCall>& calls) {
  std::vector<models::Parameter<float>> parameters;
  for (std::size_t i = 0; i < model.tensors().size(); ++i) {
    if (!model.tensors()[i].is_copy) parameters.push_back(model.parameters()[i]);
  }
  models::OuterStep outer(config.outer, workers, parameters);
  calls.clear();
  for (std::uint64_t step = 1; step <= config.training.steps; ++step) (void)outer.take(step, parameters);
  outer.settle();
  return std::exchange(calls, {});
}

/// The messages that all ranks of a world send in training.
std::vector<Sent> train(const RunConfig& config) {
  std::vector<Sent> sent(static_cast<std::size_t>(config.parallel.world_size()));
  const auto plan = pipeline_plan(config);
  comm::run_ranks(config.parallel.world_size(), std::chrono::minutes(10), [&](comm::Communicator& group) {
    Sent& own = sent[static_cast<std::size_t>(group.rank())];
    std::vector<DryCall> calls;
    NotingCommunicator world(std::make_unique<comm::DryCommunicator>(group.world_size(), group.rank(), calls), group);
    RankGroups groups(config, plan, world);
    TrainingModel model(config, groups.tensor(), groups.model_ranks());
    set_starting_weights(model, config, groups.tensor());
    calls.clear();
    if (config.sharding.shards_state()) model.gather_values();
    model.spread_embedding();
    own.start = std::exchange(calls, {});
    std::mt19937 draws(static_cast<unsigned>(group.rank()));
    std::vector<Batch> batches;
    for (int i = 0; i < config.training.accumulation; ++i) batches.push_back(random_batch(config, draws));
    (void)model.take_step(batches, 0.1);
    model.spread_embedding();
    own.step = std::exchange(calls, {});
    (void)model.evaluate(batches.front());
    own.evaluation = std::exchange(calls, {});
    comm::Communicator* const workers = groups.layout().gradient_group();
    if (config.outer.is_on() && workers != nullptr) {
      own.outer_steps = take_outer_steps(config, model, *workers, calls);
    }
  });
  return sent;
}

std::string text_of(const DryCall& call) {
  std::string text = std::string(comm::operation_name(call.operation)) + (call.is_started ? " started " : " ") +
                     std::string(sim::traffic_class_name(call.traffic_class)) + " " + call.name + " layer " +
                     std::to_string(call.layer) + " " + std::to_string(call.bytes()) + " bytes of " +
                     std::to_string(comm::element_bytes(call.type)) +
                     (call.delivery == comm::Delivery::kCertain ? " certain" : "") + " as " +
                     std::to_string(call.rank) + " with " + std::to_string(call.peer) + " in";
  for (const int rank : *call.ranks) text += " " + std::to_string(rank);
  for (const std::uint64_t count : call.counts) text += "," + std::to_string(count);
  for (const std::uint64_t count : call.receive_counts) text += ";" + std::to_string(count);
  return text;
}

void expect_equal(const std::vector<DryCall>& dry, const std::vector<DryCall>& real, const char* what) {
  ASSERT_EQ(dry.size(), real.size()) << what;
  for (std::size_t i = 0; i < dry.size(); ++i) ASSERT_EQ(text_of(dry[i]), text_of(real[i])) << what << " call " << i;
}

using Counted = std::map<std::tuple<TrafficClass, sim::Collective, std::uint64_t>, std::uint64_t>;

/// Who counts a collective. Senders count messages.
enum class Counts : std::uint8_t { kFirstOfGroup, kEachRank };

/// Collectives and messages of these ranks, by their elements as floats.
Counted count(const std::vector<std::vector<DryCall>>& ranks, Counts who = Counts::kFirstOfGroup) {
  Counted counted;
  for (const std::vector<DryCall>& calls : ranks) {
    for (const DryCall& call : calls) {
      if (call.traffic_class == TrafficClass::kControl || call.ranks->size() == 1) continue;
      const auto floats = [&](std::uint64_t elems) { return (elems * comm::element_bytes(call.type) + 3) / 4; };
      const auto add = [&](sim::Collective collective, std::uint64_t elems) {
        if (elems > 0) ++counted[{call.traffic_class, collective, floats(elems)}];
      };
      const auto add_parts = [&](sim::Collective collective) {
        std::uint64_t sum = 0;
        for (const std::uint64_t part : call.counts) sum += floats(part);
        if (sum > 0) ++counted[{call.traffic_class, collective, sum}];
      };
      const bool is_counted = call.rank == 0 || who == Counts::kEachRank;
      switch (call.operation) {
        case Operation::kAllReduce:
          if (is_counted) add(sim::Collective::kAllReduce, call.elems);
          break;
        case Operation::kReduceScatter:
          if (is_counted) add_parts(sim::Collective::kReduceScatter);
          break;
        case Operation::kAllGather:
          if (is_counted) add_parts(sim::Collective::kAllGather);
          break;
        case Operation::kSend:
          add(sim::Collective::kBroadcast, call.elems);
          break;
        case Operation::kAllToAll:
          for (std::size_t d = 0; d < call.counts.size(); ++d) {
            if (d != static_cast<std::size_t>(call.rank)) add(sim::Collective::kBroadcast, call.counts[d]);
          }
          break;
        case Operation::kRecv:
          break;
        default:
          ADD_FAILURE() << comm::operation_name(call.operation);
      }
    }
  }
  return counted;
}

Counted count(const DryRun& run, std::uint64_t CallCounts::*times) {
  Counted counted;
  for (const TrafficClass of : sim::kAllTrafficClasses) {
    for (const PlannedCollective& planned : run.of(of)) {
      const std::uint64_t number = planned.counts.*times;
      if (number > 0) counted[{of, planned.call.collective, planned.call.elements}] += number;
    }
  }
  return counted;
}

/// The counts of one rank of this kind.
Counted count(const DryRun& run, const RankKind& kind, std::uint64_t CallCounts::*times) {
  Counted counted;
  for (const auto& [at, share] : kind.shares) {
    const auto& [of, place] = at;
    const std::uint64_t number = share.counts.*times;
    if (number == 0) continue;
    const comm::FateSimulation& call = run.of(of)[place].call;
    counted[{of, call.collective, call.elements}] += number;
  }
  return counted;
}

std::vector<std::vector<DryCall>> part_of(const std::vector<Sent>& ranks, std::vector<DryCall> RankCalls::*part) {
  std::vector<std::vector<DryCall>> parts;
  for (const Sent& rank : ranks) parts.push_back(rank.*part);
  return parts;
}

/// Names of collectives and of received messages of one rank in a step, by class; those of messages with their peers.
std::map<TrafficClass, std::uint64_t> count_names(const std::vector<DryCall>& calls) {
  std::map<TrafficClass, std::set<std::string>> names;
  for (const DryCall& call : calls) {
    if (call.traffic_class == TrafficClass::kControl || call.ranks->size() == 1) continue;
    const auto add = [&](std::uint64_t elems, int peer) {
      const std::string size = std::to_string(elems * comm::element_bytes(call.type));
      if (elems > 0) {
        names[call.traffic_class].insert(call.name + " " + std::to_string(call.layer) + " " + size + " " +
                                         std::to_string(peer) + " " + std::to_string(static_cast<int>(call.operation)));
      }
    };
    if (call.operation == Operation::kSend) continue;
    if (call.operation != Operation::kAllToAll) add(call.elems, call.peer);
    for (int peer = 0; call.operation == Operation::kAllToAll && peer < static_cast<int>(call.counts.size()); ++peer) {
      if (peer != call.rank) add(call.receive_counts[static_cast<std::size_t>(peer)], peer);
    }
  }
  std::map<TrafficClass, std::uint64_t> counted;
  for (const auto& [of, set] : names) counted[of] = set.size();
  return counted;
}

std::uint64_t sum(const std::vector<DryCall>& calls, std::vector<std::uint64_t> MessageElems::*elems) {
  std::uint64_t sum = 0;
  for (const DryCall& call : calls) {
    const MessageElems of_call = message_elems(call);
    for (const std::uint64_t number : of_call.*elems) sum += number;
  }
  return sum;
}

std::vector<DryCall> of_block(const std::vector<DryCall>& calls, TrafficClass traffic_class, int layer) {
  std::vector<DryCall> of_block;
  std::ranges::copy_if(calls, std::back_inserter(of_block),
                       [&](const DryCall& call) { return call.traffic_class == traffic_class && call.layer == layer; });
  return of_block;
}

void expect_that_dry_runs_are_true(const RunConfig& config) {
  const DryRun run(config);
  const std::vector<Sent> sent = train(config);
  std::set<TrafficClass> sent_classes;
  if (config.outer.is_on() && config.parallel.data > 1) sent_classes.insert(TrafficClass::kOuter);
  for (const Sent& rank : sent) {
    for (const std::vector<DryCall>* calls : {&rank.start, &rank.step, &rank.evaluation}) {
      for (const DryCall& call : *calls) {
        const bool is_sent = call.ranks->size() > 1 && (call.elems > 0 || !call.counts.empty());
        if (is_sent && call.traffic_class != TrafficClass::kControl) sent_classes.insert(call.traffic_class);
      }
    }
  }
  EXPECT_EQ(std::set(run.classes().begin(), run.classes().end()), sent_classes);
  EXPECT_EQ(run.scattered_class(),
            config.sharding.shards_state() ? std::optional(TrafficClass::kDpGradient) : std::nullopt);
  EXPECT_EQ(run.exchanged_class(),
            config.parallel.sequence > 1 ? std::optional(TrafficClass::kSequenceBackward) : std::nullopt);
  std::vector<std::vector<DryCall>> once = part_of(sent, &RankCalls::start);
  for (const Sent& rank : sent) once.push_back(rank.outer_steps);
  EXPECT_EQ(count(run, &CallCounts::once), count(once));
  EXPECT_EQ(count(run, &CallCounts::times), count(part_of(sent, &RankCalls::step)));
  EXPECT_EQ(count(run, &CallCounts::evaluated), count(part_of(sent, &RankCalls::evaluation)));
  const auto plan = pipeline_plan(config);
  for (int rank = 0; rank < config.parallel.world_size(); ++rank) {
    const comm::ParallelNumbers at = config.parallel.coordinates(rank);
    const Sent& own = sent[static_cast<std::size_t>(rank)];
    const RankCalls dry = calls_of_rank(config, plan, at);
    expect_equal(dry.start, own.start, "start");
    expect_equal(dry.step, own.step, "step");
    expect_equal(dry.evaluation, own.evaluation, "evaluation");
    std::map<std::string, std::uint64_t> outer, dry_outer;
    for (const DryCall& call : own.outer_steps) ++outer[text_of(call)];
    for (const auto& [call, starts] : dry.outer) {
      if (starts > 0) dry_outer[text_of(call)] = starts;
    }
    EXPECT_EQ(dry_outer, outer);
    const RankKind& kind = run.kind_of(at);
    std::map<TrafficClass, std::uint64_t> names;
    for (const auto& [planned, share] : kind.shares) {
      if (share.names > 0) names[planned.first] += share.names;
    }
    std::vector<DryCall> named = own.step;
    named.insert(named.end(), own.outer_steps.begin(), own.outer_steps.end());
    EXPECT_EQ(names, count_names(named));
    EXPECT_EQ(count(run, kind, &CallCounts::once), count({own.start, own.outer_steps}, Counts::kEachRank));
    EXPECT_EQ(count(run, kind, &CallCounts::times), count({own.step}, Counts::kEachRank));
    EXPECT_EQ(count(run, kind, &CallCounts::evaluated), count({own.evaluation}, Counts::kEachRank));
    if (config.parallel.sequence == 1) continue;
    const int layer =
        plan == nullptr ? 0 : plan->stages[static_cast<std::size_t>(plan->stages_of(at.pipeline).front())].first;
    const auto forward = of_block(own.evaluation, TrafficClass::kSequenceForward, layer);
    const auto backward = of_block(own.step, TrafficClass::kSequenceBackward, layer);
    EXPECT_EQ(sum(kind.attention_forward, &MessageElems::sent), sum(forward, &MessageElems::sent));
    EXPECT_EQ(sum(kind.attention_forward, &MessageElems::received), sum(forward, &MessageElems::received));
    EXPECT_EQ(
        sum(kind.attention_backward, &MessageElems::sent) * static_cast<std::uint64_t>(config.training.accumulation),
        sum(backward, &MessageElems::sent) * static_cast<std::uint64_t>(kind.micro_batches));
  }
}

/// A spec of a small model with a random layout; it may be one that droptest refuses.
json random_spec(std::mt19937& draws) {
  const auto any = [&](auto... choices) {
    const std::vector<json> all = {json(choices)...};
    return all[draws() % all.size()];
  };
  const auto is_rare = [&] { return draws() % 4 == 0; };
  json spec;
  spec["name"] = "random";
  spec["data"]["text"] = "a.txt";
  spec["model"] = {
      {"layers", any(2, 3, 4)}, {"heads", any(4, 5, 6, 8)}, {"context", 12}, {"vocabulary", any(256, 258, 301)}};
  spec["model"]["width"] = spec["model"]["heads"].get<int>() * any(3, 4, 5).get<int>();
  spec["training"] = {{"steps", 4},
                      {"warmup_steps", 1},
                      {"batch_sequences", any(1, 2, 3)},
                      {"sequence_tokens", any(8, 11, 12)},
                      {"accumulation", any(1, 2, 3, 5, 9)}};
  spec["validation"]["tokens"] = 12;
  json& parallel = spec["parallel"];
  for (const char* dimension : {"tensor", "data", "sequence", "pipeline"}) parallel[dimension] = any(1, 1, 2, 3);
  if (is_rare()) parallel["order"] = {"tensor", "sequence", "data", "pipeline"};
  const bool has_workers = parallel["data"] != 1 && parallel["sequence"] == 1 && is_rare();
  if (has_workers) {
    spec["outer"] = {{"every_steps", any(1, 2, 3, 9)}, {"fragments", any(1, 2, 5)}, {"delay_steps", any(0, 1)}};
    spec["training"]["steps"] = any(4, 7);
  } else if (parallel["data"] != 1 || parallel["sequence"] != 1) {
    parallel["zero"] = any(0, 1, 2, 3);
    parallel["bucket_bytes"] = any(1000, 10000, 1000000);
    parallel["first_bucket_bytes"] = any(1000, 10000);
    if (parallel["zero"] == 2 || parallel["zero"] == 3) parallel["reduce"] = any("after_last", "after_each");
  }
  if (parallel["sequence"] != 1) {
    if (is_rare()) parallel["sequence"] = 4;
    parallel["sequence_kind"] = any("ulysses", "ring", "zigzag");
    if (parallel["sequence"] == 4)
      parallel["sequence_kind"] = {{"ulysses", 2}, {"ring", 2}, {"zigzag", any(false, true)}};
  }
  if (parallel["pipeline"] != 1) {
    parallel["schedule"] = any("gpipe", "1f1b", "interleaved", "zero_bubble", "round_robin");
    if (any(1, 2) == 2) parallel["chunks"] = 2;
    if (is_rare()) parallel["layers_per_stage"] = any(json::array({1, 2}), json::array({2, 1, 1}));
    if (is_rare()) spec["network"]["classes"]["pp_activation"]["fill"] = "skip";
  }
  if (parallel["tensor"] != 1 && parallel["sequence"] == 1) parallel["tensor_sequence"] = any(false, true);
  if (is_rare()) {
    json branches = json::array({{{"segment", 4}, {"dilation", 1}}, {{"segment", 8}, {"dilation", 2}}});
    spec["model"]["attention"] = {{"kind", "dilated"}, {"branches", std::move(branches)}};
  }
  if (is_rare()) spec["memory"]["strategy"] = any("standard", "aggressive");
  if (is_rare()) spec["memory"] = {{"recompute", any("selective", "full")}, {"recompute_traffic", "sent"}};
  if (is_rare()) spec["memory"]["attention_chunk"] = 4;
  if (is_rare()) spec["memory"]["offload_optimizer"] = true;
  if (is_rare()) spec["memory"]["offload_parameters"] = true;
  if (is_rare()) spec["training"]["lora"] = {{"rank", 2}};
  if (is_rare()) spec["training"]["optimizer"] = "sgd";
  if (is_rare()) spec["training"]["dropout"] = 0.1;
  if (is_rare()) spec["data"].update({{"documents", true}, {"end_of_text", 10}});
  if (is_rare()) spec["training"]["precision"] = {{"compute", "bfloat16"}, {"message", "bfloat16"}};
  if (is_rare()) spec["training"]["tensors"] = json::array({{{"match", any("wte*", "h.0.*")}, {"frozen", true}}});
  return spec;
}

TEST(DryRun, CountsTheOuterStepsOfAnyNumberOfSteps) {
  const DryRun run(
      resolved(kTwoRanks, {R"(/parallel={"data": 2})", R"(/outer={"every_steps": 4, "fragments": 2})",
                           "/training/steps=100000000000", R"(/network/classes={"outer": {"path": "contribution"}})"})
          .config);
  std::uint64_t starts = 0;
  for (const PlannedCollective& planned : run.of(TrafficClass::kOuter)) starts += planned.counts.once;
  EXPECT_EQ(starts, 25'000'000'000U + 24'999'999'999U);  // the second fragment begins 2 steps later
}

TEST(DryRun, RefusesSizesThatNoRunHas) {
  const auto error_with = [](std::vector<std::string> overrides) {
    try {
      resolved(kTwoRanks, overrides);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error_with({"/training/batch_sequences=1000000", "/training/sequence_tokens=512", "/model/context=512"}),
            "s.json: /training/batch_sequences: got 512000000 tokens in a micro-batch, want at most 268435456");
}

// Documents belong to the data of a spec, and decide which messages recomputation sends again.
TEST(DryRun, HasAKeyOfAllThatItReads) {
  const std::vector<std::string> layout = {
      R"(/parallel={"pipeline": 2, "tensor": 2, "tensor_sequence": true, "schedule": "zero_bubble"})",
      "/training/accumulation=4", R"(/memory={"recompute": "full"})",
      R"(/network={"classes": {"pp_activation": {"loss": {"model": "bernoulli", "loss_rate": "5%"}}}})"};
  struct Found {
    std::string key;
    std::uint64_t calls = 0;
  };
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = layout;
    overrides.insert(overrides.end(), more.begin(), more.end());
    const ResolvedRun resolved_run = resolved(kTwoRanks, overrides);
    const DryRun run(resolved_run.config);
    Found found{dry_run_key(resolved_run.spec, resolved_run.config)};
    for (const PlannedCollective& planned : run.of(TrafficClass::kTpBackward)) found.calls += planned.counts.times;
    return found;
  };
  const Found plain = with({});
  const Found documents = with({"/data/documents=true", "/data/end_of_text=0"});
  EXPECT_NE(documents.calls, plain.calls);
  EXPECT_NE(documents.key, plain.key);
  EXPECT_EQ(with({"/seed=7", "/training/learning_rate=0.5", "/network/classes/pp_activation/loss/loss_rate=1%"}).key,
            plain.key);
  EXPECT_NE(with({"/network/classes/pp_activation/fill=skip"}).key, plain.key);
}

// The dry run's cost does not depend on the number of micro-batches, because all send the same messages.
TEST(DryRun, ManyMicroBatchesCostNoMoreThanFew) {
  for (const char* parallel : {R"({"data": 2})", R"({"pipeline": 2, "schedule": "zero_bubble"})"}) {
    const auto sums = [&](const char* micro_batches) {
      const RunConfig config = resolved(kTwoRanks, {std::string("/parallel=") + parallel,
                                                    std::string("/training/accumulation=") + micro_batches})
                                   .config;
      const DryRun run(config);
      for (const RankKind& kind : run.kinds()) EXPECT_LE(kind.micro_batches, 4) << parallel;
      std::map<TrafficClass, std::uint64_t> times;
      for (const TrafficClass of : sim::kAllTrafficClasses) {
        for (const PlannedCollective& planned : run.of(of)) times[of] += planned.counts.times;
      }
      return times;
    };
    const auto hundred = sums("100");
    const auto thousand = sums("1000");
    for (const auto& [of, number] : hundred) {
      const bool is_of_passes = of == TrafficClass::kPpActivation || of == TrafficClass::kPpGradient;
      EXPECT_EQ(thousand.at(of), is_of_passes ? 10 * number : number) << sim::traffic_class_name(of);
    }
  }
}

TEST(DryRun, ListsTheCallsOfRandomLayouts) {
  const int wanted = kSanitized ? 40 : 500;
  std::mt19937 draws(46);
  int runs = 0;
  for (int tries = 0; runs < wanted; ++tries) {
    ASSERT_LT(tries, 40 * wanted) << "most random specs are refused";
    const json spec = random_spec(draws);
    std::optional<RunConfig> config;
    try {
      config = resolve(spec, "s.json").config;
    } catch (const ConfigError&) {
      continue;
    }
    if (config->parallel.world_size() == 1 || config->parallel.world_size() > 8) continue;
    ++runs;
    expect_that_dry_runs_are_true(*config);
    if (testing::Test::HasFailure()) FAIL() << spec.dump();
  }
}

}  // namespace
}  // namespace droptest::experiments::dry_run_test
