// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "comm/lossy/paths/path_registry.h"
#include "experiments/training/replica_divergence.h"
#include "experiments/training/validation.h"
#include "tests/comm/observed_communicator.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::trainer_test {
namespace {

using sim::TrafficClass;
using ::testing::ElementsAre;

TEST(Trainer, LearnsTheText) {
  RunConfig config = tiny_config();
  config.training.steps = 60;
  config.training.learning_rate.total_steps = 60;
  const TinyResult result = train_locally(config, tiny_corpus());
  const double first = *result.lines.front().validation_loss;
  EXPECT_NEAR(first, std::log(64.0), 0.3);  // random weights know nothing
  EXPECT_LT(*result.outcome.validation_final_loss, 1.0);
  EXPECT_LT(*result.outcome.train_final_loss, first);
  EXPECT_FALSE(result.outcome.diverged_step);
  EXPECT_EQ(result.outcome.steps, 60U);
  EXPECT_EQ(result.outcome.tokens, 60U * 64U);
  EXPECT_GT(result.outcome.tokens_per_second, 0);
}

TEST(Trainer, BestAndFinalValidationLossAreThoseOfTheLines) {
  RunConfig config = tiny_config();
  config.training.learning_rate = {.peak = 3, .floor = 3, .warmup_steps = 12, .total_steps = 12};  // unlearns
  const TinyResult result = train_locally(config, tiny_corpus());
  std::vector<double> validated;
  for (const MetricsLine& line : result.lines) {
    if (line.validation_loss) validated.push_back(*line.validation_loss);
  }
  EXPECT_EQ(*result.outcome.validation_final_loss, validated.back());
  EXPECT_EQ(*result.outcome.validation_best_loss, *std::min_element(validated.begin(), validated.end()));
  EXPECT_LT(*result.outcome.validation_best_loss, *result.outcome.validation_final_loss);
}

TEST(Trainer, LogsTheStepsThatItIsAskedFor) {
  RunConfig config = tiny_config();
  config.training.steps = 10;
  config.record.sample_every_steps = 5;
  const TinyResult result = train_locally(config, tiny_corpus());
  std::vector<std::uint64_t> steps, validated, sampled;
  for (const MetricsLine& line : result.lines) {
    steps.push_back(line.step);
    if (line.validation_loss) validated.push_back(line.step);
    if (line.divergence) sampled.push_back(line.step);
    EXPECT_EQ(line.train_loss.has_value(), line.step > 0);
    EXPECT_EQ(line.tokens, line.step * 64);
  }
  EXPECT_THAT(steps, ElementsAre(0, 3, 4, 5, 6, 8, 9, 10));
  EXPECT_THAT(validated, ElementsAre(0, 4, 8, 10));
  EXPECT_THAT(sampled, ElementsAre(5, 10));
  EXPECT_EQ(result.outcome.validation_tokens, 64U);
}

TEST(Trainer, TheSelectionLossIsOfOtherTokensAndChangesNothingElse) {
  for (const ValidationConfig::Network network :
       {ValidationConfig::Network::kLossless, ValidationConfig::Network::kLossy}) {
    RunConfig config = tiny_config();
    config.validation.network = network;
    lose(config, TrafficClass::kTpForward, 0.1);
    const Corpus corpus = tiny_corpus();
    const TinyResult without = train_locally(config, corpus);
    config.validation.selection_tokens = 40;  // 48 in whole sequences
    const TinyResult with = train_locally(config, corpus);
    EXPECT_EQ(trace_of(with), trace_of(without));
    EXPECT_EQ(with.outcome.validation_final_loss, without.outcome.validation_final_loss);
    EXPECT_FALSE(without.outcome.selection_loss);
    EXPECT_EQ(with.outcome.selection_tokens, 48U);
    for (const MetricsLine& line : with.lines) EXPECT_EQ(line.selection_loss.has_value(), line.step == 12U);
    EXPECT_EQ(with.lines.back().selection_loss, with.outcome.selection_loss);
    if (network == ValidationConfig::Network::kLossy) continue;

    // It equals the validation loss of a run with a validation part that begins with those tokens.
    const Corpus later{corpus.training, corpus.validation.part(64, corpus.validation.size() - 64)};
    config.validation.selection_tokens = 0;
    config.validation.tokens = 48;
    EXPECT_EQ(train_locally(config, later).outcome.validation_final_loss, with.outcome.selection_loss);
  }
}

TEST(Trainer, RepeatsBitForBit) {
  RunConfig config = tiny_config();
  lose(config, TrafficClass::kTpForward, 0.1);
  lose(config, TrafficClass::kTpBackward, 0.1);
  const Corpus corpus = tiny_corpus();
  const std::vector<double> once = trace_of(train_locally(config, corpus));
  EXPECT_EQ(trace_of(train_locally(config, corpus)), once);
  config.backend.threads_per_rank = 3;
  EXPECT_EQ(trace_of(train_locally(config, corpus)), once);
  config.seeds = {4, 4, 4};
  EXPECT_NE(trace_of(train_locally(config, corpus)), once);
}

TEST(Trainer, EachSeedDrawsItsOwnPartOfTheRun) {
  const Corpus corpus = tiny_corpus();
  RunConfig lossless = tiny_config();
  RunConfig lossy = tiny_config();
  lose(lossy, TrafficClass::kTpForward, 0.1);
  const auto run = [&corpus](RunConfig config, const Seeds& seeds) {
    config.seeds = seeds;
    return train_locally(config, corpus);
  };
  const auto digest = [](const TinyResult& result) { return result.outcome.statistics.at(0).digest; };
  const TinyResult base = run(lossy, {3, 3, 3});

  const TinyResult other_losses = run(lossy, {3, 3, 4});
  EXPECT_NE(digest(other_losses), digest(base));
  EXPECT_EQ(other_losses.lines[0].validation_loss, base.lines[0].validation_loss) << "the same weights";
  EXPECT_EQ(trace_of(run(lossless, {3, 3, 4})), trace_of(run(lossless, {3, 3, 3}))) << "the same training";

  const TinyResult other_batches = run(lossy, {3, 4, 3});
  EXPECT_EQ(digest(other_batches), digest(base));
  EXPECT_EQ(other_batches.lines[0].validation_loss, base.lines[0].validation_loss);
  EXPECT_NE(other_batches.lines[1].train_loss, base.lines[1].train_loss);

  const TinyResult other_weights = run(lossy, {4, 3, 3});
  EXPECT_EQ(digest(other_weights), digest(base));
  EXPECT_NE(other_weights.lines[0].validation_loss, base.lines[0].validation_loss);
}

TEST(Trainer, LossOfNothingIsTheBareBackendBitForBit) {
  const Corpus corpus = tiny_corpus();
  RunConfig config = tiny_config();
  config.parallel.tensor = 4;
  const TinyResult bare = train_locally(config, corpus);
  EXPECT_TRUE(bare.outcome.statistics.empty());
  for (const char* path : {"direct", "contribution"}) {
    RunConfig layered = config;
    lose(layered, TrafficClass::kTpForward, 0);
    lose(layered, TrafficClass::kTpBackward, 0);
    for (const TrafficClass c : {TrafficClass::kTpForward, TrafficClass::kTpBackward}) {
      layered.network.of(c)->path = path;
      if (std::string_view(path) == "contribution") layered.network.of(c)->gather.loss = nullptr;
    }
    EXPECT_EQ(trace_of(train_locally(layered, corpus)), trace_of(bare)) << path;
  }
}

TEST(Trainer, LossIsCountedAndHurts) {
  const Corpus corpus = tiny_corpus();
  RunConfig config = tiny_config();
  config.training.steps = 40;
  config.training.learning_rate.total_steps = 40;
  const double clean = *train_locally(config, corpus).outcome.validation_final_loss;
  lose(config, TrafficClass::kTpForward, 0.4);
  config.record.sample_every_steps = 20;
  const TinyResult lossy = train_locally(config, corpus);
  EXPECT_GT(*lossy.outcome.validation_final_loss, clean);
  ASSERT_EQ(lossy.outcome.statistics.size(), 1U);
  const comm::ClassStatistics& statistics = lossy.outcome.statistics[0];
  EXPECT_EQ(statistics.traffic_class, TrafficClass::kTpForward);
  EXPECT_NEAR(statistics.total().realised_rate(), 0.4, 0.05);
  EXPECT_LT(std::abs(statistics.total().z()), 4);
  const MetricsLine& last = lossy.lines.back();
  ASSERT_TRUE(last.divergence);
  EXPECT_GT(last.divergence->max, 0);  // receivers lose different packets
  EXPECT_GE(last.divergence->max, last.divergence->rms);
  EXPECT_GT(last.classes.at("tp_forward").nmse, 0.05);
  EXPECT_LT(last.classes.at("tp_forward").cosine, 1);
}

// Four ranks on every path: the counted losses have the configured rate, replicas drift, and the loss still falls.
TEST(Trainer, EveryPathTrainsUnderLoss) {
  for (const comm::PathEntry& path : comm::paths()) {
    RunConfig config = tiny_config();
    config.parallel.tensor = 4;
    config.training.steps = 40;
    config.training.learning_rate.total_steps = 40;
    for (const TrafficClass traffic_class : {TrafficClass::kTpForward, TrafficClass::kTpBackward}) {
      lose(config, traffic_class, 0.02);
      config.network.of(traffic_class)->path = path.name;
      config.network.of(traffic_class)->group_ranks = path.has_groups ? 2 : 0;
    }
    const TinyResult result = train_locally(config, tiny_corpus());
    EXPECT_FALSE(result.outcome.diverged_step) << path.name;
    EXPECT_LT(*result.outcome.validation_final_loss, *result.lines.front().validation_loss - 1) << path.name;
    ASSERT_EQ(result.outcome.statistics.size(), 2U) << path.name;
    for (const comm::ClassStatistics& losses : result.outcome.statistics) {
      EXPECT_LT(std::abs(losses.total().z()), 4) << path.name;
      EXPECT_GT(losses.total().lost_packets, 0U) << path.name;
    }
    // A second run is equal, bit for bit.
    EXPECT_EQ(trace_of(train_locally(config, tiny_corpus())), trace_of(result)) << path.name;
  }
}

TEST(Trainer, EvaluationLosesNothingUnlessAsked) {
  const Corpus corpus = tiny_corpus();
  RunConfig config = tiny_config();
  config.training.steps = 1;
  const double clean = *train_locally(config, corpus).lines.front().validation_loss;
  lose(config, TrafficClass::kTpForward, 0.5);
  EXPECT_EQ(*train_locally(config, corpus).lines.front().validation_loss, clean);
  config.validation.network = ValidationConfig::Network::kLossy;
  EXPECT_NE(*train_locally(config, corpus).lines.front().validation_loss, clean);
}

TEST(Trainer, ReplicasStayEqualWithoutLoss) {
  RunConfig config = tiny_config();
  config.record.sample_every_steps = 12;
  const TinyResult result = train_locally(config, tiny_corpus());
  ASSERT_TRUE(result.lines.back().divergence);
  EXPECT_EQ(result.lines.back().divergence->max, 0);
  EXPECT_EQ(result.lines.back().divergence->rms, 0);
  EXPECT_TRUE(result.lines.back().divergence_groups.contains("layer_norm"));
}

TEST(Trainer, MicroBatchesAddUpToOneBatch) {
  const Corpus corpus = tiny_corpus();
  RunConfig config = tiny_config();
  const std::vector<double> whole = trace_of(train_locally(config, corpus));
  config.training.accumulation = 4;
  config.training.batch_sequences = 1;
  const std::vector<double> parts = trace_of(train_locally(config, corpus));
  ASSERT_EQ(parts.size(), whole.size());
  // Same text, same weights; the sums only round differently, and training spreads that.
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 2e-4) << i;
  EXPECT_NE(parts, whole);
}

TEST(Trainer, Rank0IsHeardOfInEveryMicroBatchAndEvaluationBatch) {
  const auto calls = [](int accumulation, std::uint64_t validation_tokens) {
    RunConfig config = tiny_config();
    config.parallel.tensor = 1;
    config.training.accumulation = accumulation;
    config.validation.tokens = validation_tokens;
    std::uint64_t count = 0;
    TrainingHooks hooks;
    hooks.is_at_work = [&count] { ++count; };
    comm::run_ranks(1, std::chrono::seconds(30),
                    [&](comm::Communicator& group) { train(config, tiny_corpus(), group, hooks); });
    return count;
  };
  const std::uint64_t few = calls(1, 64);
  EXPECT_GE(calls(2, 64) - few, tiny_config().training.steps);
  EXPECT_EQ(calls(1, 128) - few, 4) << "one batch of 4 x 16 tokens more in each of 4 evaluations";
}

TEST(Trainer, DivergenceIsAResultOnEveryRank) {
  RunConfig config = tiny_config();
  config.training.steps = 200;
  config.training.learning_rate = {.peak = 1e30, .floor = 1e30, .warmup_steps = 0, .total_steps = 200};
  config.training.gradient_clip = 0;
  const TinyResult result = train_locally(config, tiny_corpus());
  ASSERT_TRUE(result.outcome.diverged_step);
  EXPECT_LT(*result.outcome.diverged_step, 10U);
  EXPECT_EQ(result.lines.back().step, *result.outcome.diverged_step);
  for (const TrainingOutcome& outcome : result.by_rank) EXPECT_EQ(outcome.diverged_step, result.outcome.diverged_step);
}

TEST(Trainer, WeightsAreKeptWhereAskedFor) {
  RunConfig config = tiny_config();
  config.record.weights = RecordConfig::Weights::kFinal;
  const TinyResult result = train_locally(config, tiny_corpus());
  EXPECT_TRUE(result.outcome.weights.contains("wte.weight"));
  EXPECT_TRUE(result.by_rank[1].weights.empty());
}

TEST(RankAgreement, IsTheMeanAndExactWhereAllAgree) {
  comm::run_ranks(3, std::chrono::seconds(10), [](comm::Communicator& group) {
    EXPECT_EQ(agree_on_mean(0.1, group, "x"), 0.1);
    EXPECT_DOUBLE_EQ(agree_on_mean(group.rank(), group, "x"), 1.0);
    const double infinity = std::numeric_limits<double>::infinity();
    EXPECT_FALSE(std::isfinite(agree_on_mean(group.rank() == 2 ? infinity : 1.0, group, "x")));
    EXPECT_FALSE(std::isfinite(agree_on_mean(group.rank() == 0 ? infinity : 1.0, group, "x")));
    EXPECT_TRUE(std::isnan(agree_on_mean(group.rank() == 1 ? std::nan("") : 1.0, group, "x")));
  });
}

// Every message of the backend and every written line takes a thousand seconds of the processor, and looking at the
// clock takes one.
TEST(Trainer, MeasuredComputeTimeHasNoTrafficSamplingEvaluationOrLogging) {
  RunConfig config = tiny_config();
  lose(config, TrafficClass::kTpForward, 0.1);
  config.record.sample_every_steps = 5;
  thread_local double now = 0;
  config.time.emplace();
  config.time->links = {{5e-6, 1e9}, {5e-6, 1e9}, 0};
  config.time->thread_seconds = [] { return now += 1; };
  for (const auto validated : {ValidationConfig::Network::kLossless, ValidationConfig::Network::kLossy}) {
    config.validation.network = validated;
    comm::run_ranks(config.parallel.world_size(), std::chrono::seconds(30), [&](comm::Communicator& backend) {
      now = 0;
      comm::ObservedCommunicator group(backend, [](const comm::Message&, std::size_t) { now += 1000; });
      const TrainingOutcome outcome = train(config, tiny_corpus(), group, [](const MetricsLine&) { now += 1000; });
      EXPECT_GT(outcome.time->compute_seconds, 12);
      EXPECT_LT(outcome.time->compute_seconds, 1000);
    });
  }
}

TEST(Trainer, AnEvaluationOverTheLossyNetworkTakesNoVirtualTime) {
  RunConfig config = tiny_config();
  lose(config, TrafficClass::kTpForward, 0.1);
  config.time.emplace();
  config.time->links = {{5e-6, 1e9}, {5e-6, 1e9}, 0};
  config.time->compute_seconds = 1e-3;
  std::vector<double> seconds;
  for (const auto validated : {ValidationConfig::Network::kLossless, ValidationConfig::Network::kLossy}) {
    config.validation.network = validated;
    seconds.push_back(*train_locally(config, tiny_corpus()).lines.back().virtual_seconds);
  }
  EXPECT_EQ(seconds[0], seconds[1]);
}

comm::ParallelLayout tensor_parallel(int ranks) {
  comm::ParallelLayout layout;
  layout.tensor = ranks;
  return layout;
}

TEST(ReplicaDivergence, IsTheSpreadOverRanks) {
  comm::run_ranks(3, std::chrono::seconds(10), [](comm::Communicator& group) {
    const comm::ParallelGroups groups(tensor_parallel(3), group);
    const auto r = static_cast<float>(group.rank());
    std::vector<float> replicated = {0.1F, r};  // differences 1, 2, 1 in the second element
    std::vector<float> equal = {0.3F, 0.7F, -1.0F};
    std::vector<float> sharded = {100 * r};
    std::vector<models::Parameter<float>> parameters(3);
    parameters[0] = {"a", "bias", {2}, models::Placement::kReplicated, models::Decay::kKeeps, replicated, {}};
    parameters[1] = {"b", "layer_norm", {3}, models::Placement::kReplicated, models::Decay::kKeeps, equal, {}};
    parameters[2] = {"c", "matrix", {1}, models::Placement::kSharded, models::Decay::kDecays, sharded, {}};
    const ReplicaDivergence divergence = measure_replica_divergence(parameters, groups);
    EXPECT_EQ(divergence.groups.size(), 2U);
    EXPECT_EQ(divergence.groups.at("layer_norm").max, 0);
    EXPECT_EQ(divergence.groups.at("layer_norm").rms, 0);
    EXPECT_EQ(divergence.groups.at("bias").max, 2);
    EXPECT_DOUBLE_EQ(divergence.groups.at("bias").rms, 1.0);  // (1 + 4 + 1) / (2 elements x 3 pairs)
    EXPECT_EQ(divergence.all.max, 2);
    EXPECT_DOUBLE_EQ(divergence.all.rms, std::sqrt(6.0 / 15.0));
  });
}

// Ranks 0 and 2 have copies of one part, ranks 1 and 3 of the other.
TEST(ReplicaDivergence, PartsAreComparedWithThoseOfOtherReplicas) {
  comm::run_ranks(4, std::chrono::seconds(10), [](comm::Communicator& group) {
    comm::ParallelLayout layout = tensor_parallel(2);
    layout.data = 2;
    const comm::ParallelGroups groups(layout, group);
    const auto r = static_cast<float>(group.rank());
    std::vector<float> replicated = {r};
    std::vector<float> sharded = {100 * r, 7};
    std::vector<models::Parameter<float>> parameters(2);
    parameters[0] = {"a", "bias", {1}, models::Placement::kReplicated, models::Decay::kKeeps, replicated, {}};
    parameters[1] = {"c", "matrix", {2}, models::Placement::kSharded, models::Decay::kDecays, sharded, {}};
    const ReplicaDivergence divergence = measure_replica_divergence(parameters, groups);
    EXPECT_EQ(divergence.groups.at("bias").max, 3);
    EXPECT_DOUBLE_EQ(divergence.groups.at("bias").rms, std::sqrt((1 + 4 + 9 + 1 + 4 + 1) / 6.0));
    EXPECT_EQ(divergence.groups.at("matrix").max, 200);
    EXPECT_DOUBLE_EQ(divergence.groups.at("matrix").rms, std::sqrt(2 * 40000 / 4.0));
    EXPECT_EQ(divergence.all.max, 200);
    EXPECT_DOUBLE_EQ(divergence.all.rms, std::sqrt((20 + 80000) / 10.0));
  });
}

TEST(ReplicaDivergence, AValueThatIsNotFiniteIsNotHidden) {
  comm::run_ranks(3, std::chrono::seconds(10), [](comm::Communicator& group) {
    const comm::ParallelGroups groups(tensor_parallel(3), group);
    for (const float odd : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      for (const int rank : {0, 2}) {
        std::vector<float> replicated = {0.0F, group.rank() == rank ? odd : 1.0F, static_cast<float>(group.rank())};
        std::vector<models::Parameter<float>> parameters(1);
        parameters[0] = {"a", "bias", {3}, models::Placement::kReplicated, models::Decay::kKeeps, replicated, {}};
        const ReplicaDivergence divergence = measure_replica_divergence(parameters, groups);
        EXPECT_FALSE(std::isfinite(divergence.all.max)) << odd << " on rank " << rank;
        EXPECT_FALSE(std::isfinite(divergence.all.rms)) << odd << " on rank " << rank;
        EXPECT_FALSE(std::isfinite(divergence.groups.at("bias").max));
      }
    }
  });
}

}  // namespace
}  // namespace droptest::experiments::trainer_test
