// SPDX-License-Identifier: Apache-2.0
// Replicas that take no part in some steps.
#include "experiments/training/replica_absences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "experiments/spec/run_config.h"
#include "experiments/training/trainer.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::replica_absences_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

RunConfig replicas(int data, int tensor = 1, int pipeline = 1) {
  RunConfig config = tiny_config();
  config.model.layers = pipeline;
  config.parallel.data = data;
  config.parallel.tensor = tensor;
  config.parallel.pipeline = pipeline;
  config.training.accumulation = 2;
  config.record.every_steps = 1;
  config.record.sample_every_steps = 1;
  config.record.weights = RecordConfig::Weights::kFinal;
  return config;
}

RunConfig with_absences(RunConfig config, std::vector<ReplicaAbsence> absences) {
  config.failures.emplace().replicas = std::move(absences);
  return config;
}

void expect_equal_training(const TinyResult& a, const TinyResult& b) {
  EXPECT_EQ(trace_of(a), trace_of(b));
  EXPECT_EQ(a.outcome.tokens, b.outcome.tokens);
  ASSERT_EQ(a.outcome.weights.size(), b.outcome.weights.size());
  ASSERT_FALSE(a.outcome.weights.empty());
  for (const auto& [name, tensor] : a.outcome.weights) {
    EXPECT_EQ(tensor.bytes, b.outcome.weights.at(name).bytes) << name;
  }
}

TEST(ReplicaAbsences, AreAFunctionOfTheStep) {
  const std::vector<ReplicaAbsence> absences = {{2, 3, 5, {}}, {1, 4, 6, {}}, {2, 8, {}, {}}};
  EXPECT_THAT(absent_replicas(absences, 2), IsEmpty());
  EXPECT_THAT(absent_replicas(absences, 3), ElementsAre(2));
  EXPECT_THAT(absent_replicas(absences, 4), ElementsAre(1, 2));
  EXPECT_THAT(absent_replicas(absences, 5), ElementsAre(1));
  EXPECT_THAT(absent_replicas(absences, 7), IsEmpty());
  EXPECT_THAT(absent_replicas(absences, 1000), ElementsAre(2));
}

TEST(ReplicaAbsences, AreRecordedAsFarAsTheRunCame) {
  const RunConfig config = with_absences(replicas(3), {{2, 3, 5, {}}, {1, 4, 6, {}}, {2, 8, {}, {}}});
  const auto text = [&config](std::uint64_t last) {
    std::string all;
    for (const ReplicaAbsenceRecord& record : absences_until(config, last)) {
      all += std::to_string(record.data_rank) + "@" + std::to_string(record.from) + "+" + std::to_string(record.steps);
      all += ' ';
    }
    return all;
  };
  EXPECT_EQ(text(2), "");
  EXPECT_EQ(text(4), "2@3+2 1@4+1 ");
  EXPECT_EQ(text(12), "2@3+2 1@4+2 2@8+5 ");
  EXPECT_THAT(absences_until(replicas(3), 12), IsEmpty());
}

TEST(ReplicaAbsences, LeaveTheTrainingOfTheReplicasThatAreThere) {
  const Corpus corpus = tiny_corpus();
  struct Case {
    int tensor, pipeline;
    comm::ParallelOrder order;
  };
  using enum comm::ParallelDimension;
  const comm::ParallelOrder data_first = {kData, kSequence, kTensor, kPipeline};
  for (const Case& c : {Case{1, 1, comm::kDefaultOrder}, Case{2, 1, comm::kDefaultOrder},
                        Case{1, 2, comm::kDefaultOrder}, Case{2, 1, data_first}, Case{1, 2, data_first}}) {
    SCOPED_TRACE("tensor " + std::to_string(c.tensor) + " pipeline " + std::to_string(c.pipeline));
    RunConfig three = replicas(3, c.tensor, c.pipeline);
    three.parallel.order = c.order;
    expect_equal_training(train_locally(with_absences(three, {{1, 1, {}, {}}}), corpus),
                          train_locally(replicas(2, c.tensor, c.pipeline), corpus));
    expect_equal_training(train_locally(with_absences(three, {{1, 1, {}, {}}, {2, 1, {}, {}}}), corpus),
                          train_locally(replicas(1, c.tensor, c.pipeline), corpus));
  }
}

TEST(ReplicaAbsences, EndWithAllStateOfReplicaZero) {
  const Corpus corpus = tiny_corpus();
  for (const int pipeline : {1, 2}) {
    const TinyResult run =
        train_locally(with_absences(replicas(3, 1, pipeline), {{1, 3, 6, {}}, {2, 5, 8, {}}}), corpus);
    ASSERT_EQ(run.lines.size(), 13U);
    for (const MetricsLine& line : run.lines) {
      if (line.step == 0) continue;
      EXPECT_EQ(line.divergence.value().max, 0) << line.step;  // also of the moments: steps after a return are equal
      static constexpr std::array kThere = {3, 3, 3, 2, 2, 1, 2, 2, 3, 3, 3, 3, 3};
      const int there = kThere.at(line.step);
      EXPECT_EQ(line.replicas, there == 3 ? std::nullopt : std::optional(there)) << line.step;
    }
    for (const TrainingOutcome& of_rank : run.by_rank) {
      EXPECT_EQ(of_rank.steps, 12U);
      EXPECT_EQ(of_rank.validation_final_loss, run.outcome.validation_final_loss);
    }
    const std::uint64_t tokens_of_replica = 2 * 4 * 16;
    EXPECT_EQ(run.outcome.tokens, tokens_of_replica * (12 * 3 - 3 - 3));
    // Steps before the first absence are those of a run without any.
    const TinyResult whole = train_locally(replicas(3, 1, pipeline), corpus);
    EXPECT_EQ(run.lines[2].train_loss, whole.lines[2].train_loss);
    EXPECT_NE(run.lines[3].train_loss, whole.lines[3].train_loss);
  }
}

TEST(ReplicaAbsences, HaveExactLossesOfTheirOwnGroups) {
  const Corpus corpus = tiny_corpus();
  RunConfig config = with_absences(replicas(3, 2), {{2, 4, 8, {}}});
  lose(config, sim::TrafficClass::kDpGradient, 0.1);
  lose(config, sim::TrafficClass::kTpForward, 0.05);
  const TinyResult run = train_locally(config, corpus);
  expect_equal_training(run, train_locally(config, corpus));
  const auto packets = [&](const TinyResult& of, sim::TrafficClass traffic_class) {
    for (const comm::ClassStatistics& statistics : of.outcome.statistics) {
      if (statistics.traffic_class == traffic_class) return statistics.total().packets;
    }
    return std::uint64_t{0};
  };
  RunConfig three = replicas(3, 2);
  RunConfig two = replicas(2, 2);
  for (RunConfig* of : {&three, &two}) {
    lose(*of, sim::TrafficClass::kDpGradient, 0.1);
    lose(*of, sim::TrafficClass::kTpForward, 0.05);
  }
  // Four of twelve steps have two replicas.
  for (const auto traffic_class : {sim::TrafficClass::kDpGradient, sim::TrafficClass::kTpForward}) {
    EXPECT_EQ(packets(run, traffic_class) * 12, packets(train_locally(three, corpus), traffic_class) * 8 +
                                                    packets(train_locally(two, corpus), traffic_class) * 4);
  }
}

}  // namespace
}  // namespace droptest::experiments::replica_absences_test
