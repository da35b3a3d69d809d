// SPDX-License-Identifier: Apache-2.0
// Replicas of a run: their sequences, their messages, and their parameters under loss.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "comm/backend_registry.h"
#include "experiments/records/loss_statistics_record.h"
#include "experiments/records/run_records.h"
#include "experiments/run/run_forecast.h"
#include "experiments/training/trainer.h"
#include "tests/comm/exposed_time.h"
#include "tests/experiments/layouts_of_runs.h"

namespace droptest::experiments::data_parallel_trainer_test {
namespace {

using sim::TrafficClass;

RunConfig replicas(int data, int tensor, int zero) {
  RunConfig config = tiny_config();
  config.parallel.tensor = tensor;
  config.parallel.data = data;
  config.sharding.zero = zero;
  config.sharding.bucket_bytes = 65536;
  config.sharding.first_bucket_bytes = 1000;
  config.sharding.gather_bucket_bytes = 40000;
  config.training.batch_sequences = 8 / data;
  config.record.every_steps = 1;
  return config;
}

TEST(Replicas, OfEqualGlobalBatchesReadTheSameTextInAnyLayout) {
  const TinyResult one = train_locally(replicas(1, 1, 0), tiny_corpus());
  for (const auto& [data, tensor, accumulation] : {std::tuple{2, 1, 1}, {4, 2, 1}, {2, 2, 2}, {1, 2, 4}}) {
    RunConfig config = replicas(data, tensor, 0);
    config.training.batch_sequences = 8 / data / accumulation;
    config.training.accumulation = accumulation;
    expect_same_training(train_locally(config, tiny_corpus()), one);
  }
}

TEST(Replicas, ShardingChangesNoBitWithoutLoss) {
  for (const int tensor : {1, 2}) {
    const TinyResult want = train_locally(replicas(2, tensor, 0), tiny_corpus());
    for (const int zero : {1, 2, 3}) {
      EXPECT_EQ(trace_of(train_locally(replicas(2, tensor, zero), tiny_corpus())), trace_of(want))
          << "zero " << zero << ", tensor " << tensor;
    }
  }
}

TEST(Replicas, WithoutLossTheyAreEqualAndEvaluateAsOneRankWould) {
  RunConfig config = replicas(2, 2, 1);
  config.record.sample_every_steps = 4;
  for (const MetricsLine& line : train_locally(config, tiny_corpus()).lines) {
    if (!line.divergence) continue;
    EXPECT_EQ(line.divergence->max, 0);
    EXPECT_EQ(line.divergence_groups.size(), 4U);
  }
  // Weights do not depend on which replica reads which part of the text.
  config.training.steps = 1;
  config.validation.tokens = 16 * 7;
  RunConfig one = config;
  one.parallel.data = 1;
  one.sharding = {};
  EXPECT_EQ(*train_locally(config, tiny_corpus()).lines[0].validation_loss,
            *train_locally(one, tiny_corpus()).lines[0].validation_loss);
}

TEST(Replicas, ThatLoseGradientsDivergeAndStaleParametersFollow) {
  RunConfig config = replicas(2, 1, 0);
  config.record.sample_every_steps = 6;
  lose(config, TrafficClass::kDpGradient, 0.2);
  const auto divergence = [](const RunConfig& of) {
    double last = 0;
    for (const MetricsLine& line : train_locally(of, tiny_corpus()).lines) {
      if (line.divergence) last = line.divergence->max;
    }
    return last;
  };
  EXPECT_GT(divergence(config), 0);  // each replica misses other results
  config.sharding.zero = 1;
  EXPECT_EQ(divergence(config), 0);  // one owner updates each parameter
  lose(config, TrafficClass::kParameterGather, 0.2);
  config.network.of(TrafficClass::kParameterGather)->gather.fill = comm::Fill::kStale;
  const double stale = divergence(config);
  EXPECT_GT(stale, 0);
  EXPECT_LT(stale, 0.2);  // a few steps of 0.01
  lose(config, TrafficClass::kParameterGather, 0.9);
  EXPECT_GT(divergence(config), 0.9);  // a gain of a norm that is zero elsewhere
}

// The fills own and stale keep the last values: with a whole copy of the parameters on each rank they are the same.
TEST(Replicas, OwnAndStaleParametersAreTheSameWhereEachRankHasAllOfThem) {
  const auto trace = [](comm::Fill fill, int zero) {
    RunConfig config = replicas(2, 2, zero);
    lose(config, TrafficClass::kParameterGather, 0.3);
    config.network.of(TrafficClass::kParameterGather)->gather.fill = fill;
    return trace_of(train_locally(config, tiny_corpus()));
  };
  for (const int zero : {1, 2}) EXPECT_EQ(trace(comm::Fill::kOwn, zero), trace(comm::Fill::kStale, zero));
  EXPECT_NE(trace(comm::Fill::kOwn, 1), trace(comm::Fill::kZero, 1));
}

// Compute time is given, so that times are a pure function of the run. With one bucket, training waits for the
// reduction of all gradients; with several buckets, only for the last one. The results are equal.
TEST(Replicas, BucketsHideBehindTheBackwardPass) {
  RunConfig config = replicas(2, 1, 0);
  config.model.layers = 4;
  config.training.steps = 5;
  config.training.accumulation = 2;
  config.network.of(TrafficClass::kDpGradient).emplace();
  set_time(config, {1e-6, 1e9}, 1e-3);
  const auto virtual_time = [&config](std::uint64_t bucket_bytes) {
    config.sharding.bucket_bytes = bucket_bytes;
    config.sharding.first_bucket_bytes = bucket_bytes;
    return *train_locally(config, tiny_corpus()).outcome.time;
  };
  const comm::VirtualTime one = virtual_time(1U << 30U);
  const comm::VirtualTime several = virtual_time(1U << 15U);
  EXPECT_NEAR(one.compute_seconds, 5e-3, 1e-12);
  EXPECT_NEAR(several.compute_seconds, 5e-3, 1e-12);
  EXPECT_NEAR(exposed_seconds(one), one.network_seconds, 1e-9);  // nothing is left to compute
  EXPECT_LT(exposed_seconds(several), 0.7 * several.network_seconds);
  EXPECT_LT(several.seconds, one.seconds);
}

// Sums over tensor-parallel ranks use the same ports as buckets, and wait for the part of the buckets that computation
// has not hidden.
TEST(Replicas, BucketsHideBesideTensorParallelismToo) {
  RunConfig config = replicas(2, 2, 0);
  config.model.layers = 4;
  config.training.steps = 5;
  for (const TrafficClass of : {TrafficClass::kDpGradient, TrafficClass::kTpForward, TrafficClass::kTpBackward}) {
    config.network.of(of).emplace();
  }
  set_time(config, {1e-6, 1e9}, 1);  // the computation takes far longer than all messages
  config.sharding.bucket_bytes = config.sharding.first_bucket_bytes = 1U << 15U;
  const comm::VirtualTime several = *train_locally(config, tiny_corpus()).outcome.time;
  config.sharding.bucket_bytes = config.sharding.first_bucket_bytes = 1U << 30U;
  const comm::VirtualTime one = *train_locally(config, tiny_corpus()).outcome.time;
  EXPECT_NEAR(exposed_seconds(one), one.network_seconds, 1e-9);
  // The sums of tensor parallelism are exposed, and the last bucket.
  EXPECT_LT(exposed_seconds(several), 0.85 * several.network_seconds);
}

TEST(Replicas, SendAsManyPacketsAsTheForecastSays) {
  for (const char* path : {"direct", "contribution", "ring", "tree", "hierarchical"}) {
    const bool has_groups = std::string_view(path) == "hierarchical";
    for (const int zero : {0, 1, 2, 3}) {
      RunConfig config = has_groups ? replicas(4, 1, zero) : replicas(2, 2, zero);
      config.training.accumulation = 2;
      if (zero == 2) config.sharding.reduce = models::ShardOptions::Reduce::kAfterEach;
      config.sharding.micro_batches = 2;
      config.training.steps = 3;
      config.validation.network = zero == 3 ? ValidationConfig::Network::kLossy : ValidationConfig::Network::kLossless;
      for (const TrafficClass traffic_class : {TrafficClass::kTpForward, TrafficClass::kTpBackward,
                                               TrafficClass::kDpGradient, TrafficClass::kParameterGather}) {
        if (traffic_class == TrafficClass::kParameterGather && zero == 0) continue;
        if (has_groups && traffic_class != TrafficClass::kDpGradient &&
            traffic_class != TrafficClass::kParameterGather) {
          continue;  // one rank has all of a layer
        }
        lose(config, traffic_class, 0.01);
        config.network.of(traffic_class)->path = path;
        if (has_groups) config.network.of(traffic_class)->group_ranks = 2;
        if (traffic_class == TrafficClass::kParameterGather) {
          config.network.of(traffic_class)->gather.fill = comm::Fill::kStale;
        }
      }
      EXPECT_EQ(sent_packets(train_locally(config, tiny_corpus())), expected_packets(config))
          << path << ", zero " << zero;
    }
  }
}

constexpr comm::ParallelOrder kDataFirst = {comm::ParallelDimension::kData, comm::ParallelDimension::kTensor,
                                            comm::ParallelDimension::kSequence, comm::ParallelDimension::kPipeline};

TEST(Replicas, TheOrderOfRanksChangesNoResultWithoutLoss) {
  for (const int zero : {0, 3}) {
    RunConfig config = replicas(2, 2, zero);
    config.training.steps = 4;
    const std::vector<double> want = trace_of(train_locally(config, tiny_corpus()));
    for (const comm::ParallelOrder& order : {kDataFirst, comm::kMegatronOrder}) {
      config.parallel.order = order;
      EXPECT_EQ(trace_of(train_locally(config, tiny_corpus())), want) << "zero " << zero;
    }
  }
}

// Each class has its own groups, with different ranks in each order; all of them lose packets.
TEST(Replicas, InAnyOrderOfRanksTrainOverGlooAsOnLocalRanks) {
  if (!comm::backend_entry("gloo").built) GTEST_SKIP() << "the gloo backend was not built";
  std::vector<std::vector<double>> traces;
  for (const comm::ParallelOrder& order : {comm::kDefaultOrder, kDataFirst}) {
    for (const bool pipelined : {false, true}) {
      RunConfig config = replicas(2, 2, pipelined ? 1 : 3);
      config.parallel.order = order;
      config.training.steps = 4;
      std::vector<TrafficClass> classes = {TrafficClass::kTpForward, TrafficClass::kTpBackward,
                                           TrafficClass::kDpGradient, TrafficClass::kParameterGather};
      if (pipelined) {
        config.model.layers = 2;
        config.parallel.pipeline = 2;
        config.training.accumulation = 2;
        config.training.batch_sequences = 2;
        classes.insert(classes.end(),
                       {TrafficClass::kPpActivation, TrafficClass::kPpGradient, TrafficClass::kEmbeddingGradient});
      }
      for (const TrafficClass traffic_class : classes) lose(config, traffic_class, 0.05);
      config.network.of(TrafficClass::kParameterGather)->gather.fill = comm::Fill::kStale;
      const TinyResult local = train_locally(config, tiny_corpus());
      const TinyResult gloo = train_over_gloo(config, tiny_corpus());
      const std::string what =
          std::string(pipelined ? "pipeline" : "zero 3") + (order == kDataFirst ? ", data first" : ", default order");
      EXPECT_EQ(trace_of(gloo), trace_of(local)) << what;
      ASSERT_EQ(gloo.outcome.statistics.size(), classes.size()) << what;
      ASSERT_EQ(local.outcome.statistics.size(), classes.size()) << what;
      for (std::size_t c = 0; c < classes.size(); ++c) {
        EXPECT_EQ(gloo.outcome.statistics[c].digest, local.outcome.statistics[c].digest) << what;
        EXPECT_GT(local.outcome.statistics[c].total().lost_packets, 0U) << what;
      }
      traces.push_back(trace_of(local));
    }
  }
  EXPECT_NE(traces[0], traces[2]) << "other links lose other packets";
  EXPECT_NE(traces[1], traces[3]);
}

// A lossless evaluation draws no fates: training does not depend on how often there is one.
// bfloat16 rounds to 8 significant bits: the relative error of a value is at most 2^-9, half of that on the average.
TEST(Replicas, RecordTheRatioAndErrorOfACompression) {
  const auto record_of = [](comm::Compression compression) {
    RunConfig config = tiny_config();
    config.parallel.tensor = 1;
    config.parallel.data = 2;
    config.record.sample_every_steps = 1;
    lose(config, TrafficClass::kDpGradient, 0);
    config.network.of(TrafficClass::kDpGradient)->compression = compression;
    const TinyResult result = train_locally(config, tiny_corpus());
    return loss_statistics_json(result.outcome.statistics, config.network)["classes"]["dp_gradient"]["compression"];
  };
  const nlohmann::json halves = record_of({comm::CompressionKind::kBfloat16});
  EXPECT_EQ(halves["kind"], "bfloat16");
  EXPECT_EQ(halves["ratio"], 2.0);
  EXPECT_EQ(halves["content_bytes"].get<std::uint64_t>(), 2 * halves["bytes"].get<std::uint64_t>());
  EXPECT_GT(halves["nmse"].get<double>(), std::ldexp(1, -20));
  EXPECT_LT(halves["nmse"].get<double>(), std::ldexp(1, -18));
  // Blocks of 16 codes of a byte with a scale of four: 64 bytes as 20.
  const nlohmann::json bytes = record_of({comm::CompressionKind::kInt8, 16});
  EXPECT_NEAR(bytes["ratio"].get<double>(), 3.2, 0.02);
  const nlohmann::json largest = record_of({.kind = comm::CompressionKind::kTopK, .fraction = 0.25});
  EXPECT_GT(largest["nmse"].get<double>(), 0.01);
  EXPECT_LT(largest["nmse"].get<double>(), 0.75) << "the largest quarter has more than a quarter of the energy";
  EXPECT_EQ(largest["dropped_pairs"], 0);
}

TEST(Replicas, LosslessEvaluationLeavesTheLossesOfTrainingAlone) {
  const auto losses_of = [](std::uint64_t every_steps, ValidationConfig::Network network) {
    RunConfig config = replicas(2, 2, 3);
    config.validation.network = network;
    config.validation.every_steps = every_steps;
    for (const TrafficClass of : {TrafficClass::kTpForward, TrafficClass::kTpBackward, TrafficClass::kDpGradient,
                                  TrafficClass::kParameterGather}) {
      lose(config, of, 0.05);
    }
    config.network.of(TrafficClass::kParameterGather)->gather.fill = comm::Fill::kStale;
    std::vector<double> losses;
    for (const MetricsLine& line : train_locally(config, tiny_corpus()).lines) {
      if (line.train_loss) losses.push_back(*line.train_loss);
    }
    return losses;
  };
  using enum ValidationConfig::Network;
  EXPECT_EQ(losses_of(4, kLossless), losses_of(6, kLossless));
  // A lossy one sends its messages over the links of training (docs/parallelism.md).
  EXPECT_NE(losses_of(4, kLossy), losses_of(6, kLossy));
}

}  // namespace
}  // namespace droptest::experiments::data_parallel_trainer_test
