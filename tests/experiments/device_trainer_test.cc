// SPDX-License-Identifier: Apache-2.0
// Compares runs on a device with the same runs on the host: always on the fake device, and on a real device if there is
// one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/device/device_info.h"
#include "comm/device/device_libraries.h"
#include "comm/json/json_text.h"
#include "experiments/files/weights_file.h"
#include "experiments/run/execute_run.h"
#include "experiments/training/single_rank.h"
#include "experiments/training/training_model.h"
#include "models/gpt2/gpt2_weights.h"
#include "models/kernels/narrow_floats.h"
#include "sim/error.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/resolved_spec.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::device_trainer_test {
namespace {

using sim::TrafficClass;

class TrainerOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    const std::string absence = comm::survey_devices().absence;
    if (absence.empty()) return;
    const char* required = std::getenv("DROPTEST_REQUIRE_CUDA");
    ASSERT_FALSE(required != nullptr && std::string(required) == "1") << absence;
    GTEST_SKIP() << absence;
  }
};

RunConfig on_device(RunConfig config) {
  config.device = Device::kCuda;
  return config;
}

/// Expects the same losses and norms, up to rounding, which grows over the steps.
void expect_same_curve(const TinyResult& got, const TinyResult& want, double tolerance) {
  ASSERT_EQ(got.lines.size(), want.lines.size());
  for (std::size_t i = 0; i < got.lines.size(); ++i) {
    const MetricsLine& a = got.lines[i];
    const MetricsLine& b = want.lines[i];
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.learning_rate, b.learning_rate);
    EXPECT_NEAR(a.train_loss.value_or(0), b.train_loss.value_or(0), tolerance);
    EXPECT_NEAR(a.validation_loss.value_or(0), b.validation_loss.value_or(0), tolerance);
    EXPECT_NEAR(a.gradient_norm.value_or(0), b.gradient_norm.value_or(0), 10 * tolerance);
  }
}

// A float pass is off by 1e-6 (docs/models.md). Adam divides gradients by their own size, so the rounding of gradients
// near zero, such as those of the biases of keys, grows to whole steps of 0.01; the loss hardly depends on these
// parameters.
constexpr double kFloatCurve = 1e-3;

TEST_F(TrainerOnDevice, TrainsAsTheHostDoes) {
  const Corpus corpus = tiny_corpus();
  for (const int ranks : {1, 2}) {
    RunConfig config = tiny_config();
    config.parallel.tensor = ranks;
    config.training.accumulation = 2;
    config.training.steps = 8;
    const TinyResult device = train_locally(on_device(config), corpus);
    expect_same_curve(device, train_locally(config, corpus), kFloatCurve);
    EXPECT_LT(*device.outcome.train_final_loss, *device.lines.front().validation_loss - 0.5);  // it learns
    for (const nlohmann::json& rank : device.lines.back().ranks) EXPECT_GT(rank.at("device_bytes"), 0);
  }
}

// Validation between the steps has no dropout on either.
TEST_F(TrainerOnDevice, DropsTheElementsOfTheHost) {
  const Corpus corpus = tiny_corpus();
  RunConfig config = tiny_config();
  config.model.layers = 2;
  config.model.dropout = {0.2, 0.15, 0.1, 9};
  config.training.steps = 4;
  config.record.every_steps = 1;
  std::vector<RunConfig> runs(6, config);
  runs[0].parallel.tensor = 1;
  runs[2].tensor_sequence = true;
  runs[3].memory.recompute = models::Recompute::kSelective;
  runs[4].memory.recompute = models::Recompute::kBlock;
  runs[5].model.attention.chunk_tokens = 5;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE(i);
    const TinyResult host = train_locally(runs[i], corpus);
    expect_same_curve(train_locally(on_device(runs[i]), corpus), host, kFloatCurve);
  }
  RunConfig without = runs[1];
  without.model.dropout = {};
  const double dropped = *train_locally(on_device(runs[1]), corpus).outcome.train_final_loss;
  EXPECT_GT(std::abs(*train_locally(on_device(without), corpus).outcome.train_final_loss - dropped), 10 * kFloatCurve);
}

// Passes of inputs without those of weights need the gathered tokens for each projection that is computed again: on a
// device selective recomputation projects for GELU, and on the host it does not.
TEST_F(TrainerOnDevice, ComputesBlocksAgainInAnyScheduleAsTheHostSavesThem) {
  const Corpus corpus = tiny_corpus();
  RunConfig config = tiny_config();
  config.model.layers = 2;
  config.parallel.pipeline = 2;
  config.tensor_sequence = true;
  config.training.batch_sequences = 2;
  config.training.accumulation = 2;
  config.training.steps = 3;
  config.record.every_steps = 1;
  for (const models::ScheduleKind schedule :
       {models::ScheduleKind::kOneForwardOneBackward, models::ScheduleKind::kZeroBubble}) {
    config.pipeline.schedule = schedule;
    config.memory.recompute = models::Recompute::kSaveAll;
    const TinyResult host = train_locally(config, corpus);
    for (const models::Recompute policy : {models::Recompute::kSelective, models::Recompute::kBlock}) {
      SCOPED_TRACE(testing::Message() << "schedule " << static_cast<int>(schedule) << ", policy "
                                      << static_cast<int>(policy));
      config.memory.recompute = policy;
      expect_same_curve(train_locally(on_device(config), corpus), host, kFloatCurve);
    }
  }
}

TEST_F(TrainerOnDevice, SequenceRanksLoseTheSamePackets) {
  const Corpus corpus = tiny_corpus();
  RunConfig config = tiny_config();
  config.parallel.tensor = 1;
  config.parallel.sequence = 2;
  config.model.attention.sequence.factors.ring = 2;
  config.training.steps = 4;
  for (const TrafficClass c : {TrafficClass::kSequenceForward, TrafficClass::kSequenceBackward}) lose(config, c, 0.05);
  config.network.of(TrafficClass::kSequenceForward)->gather.fill = comm::Fill::kAbsent;
  const TinyResult host = train_locally(config, corpus);
  const TinyResult device = train_locally(on_device(config), corpus);
  expect_same_curve(device, host, kFloatCurve);
  ASSERT_EQ(device.outcome.statistics.size(), host.outcome.statistics.size());
  for (std::size_t i = 0; i < host.outcome.statistics.size(); ++i) {
    EXPECT_EQ(device.outcome.statistics[i].digest, host.outcome.statistics[i].digest);
    EXPECT_EQ(device.outcome.statistics[i].total().packets, host.outcome.statistics[i].total().packets);
  }
}

TEST_F(TrainerOnDevice, RepeatsBitForBit) {
  RunConfig config = on_device(tiny_config());
  lose(config, TrafficClass::kTpForward, 0.1);
  lose(config, TrafficClass::kTpBackward, 0.1);
  config.training.steps = 4;
  const Corpus corpus = tiny_corpus();
  EXPECT_EQ(trace_of(train_locally(config, corpus)), trace_of(train_locally(config, corpus)));
}

TEST_F(TrainerOnDevice, TheSamePacketsAreLost) {
  const Corpus corpus = tiny_corpus();
  for (const char* path : {"direct", "contribution"}) {
    RunConfig config = tiny_config();
    config.training.steps = 6;
    config.record.sample_every_steps = 3;
    for (const TrafficClass c : {TrafficClass::kTpForward, TrafficClass::kTpBackward}) {
      lose(config, c, 0.05);
      config.network.of(c)->path = path;
      config.network.of(c)->reduce.fill = comm::Fill::kCountRescale;
    }
    const TinyResult host = train_locally(config, corpus);
    const TinyResult device = train_locally(on_device(config), corpus);
    expect_same_curve(device, host, kFloatCurve);
    ASSERT_EQ(device.outcome.statistics.size(), host.outcome.statistics.size());
    for (std::size_t i = 0; i < host.outcome.statistics.size(); ++i) {
      const comm::ClassStatistics& a = device.outcome.statistics[i];
      const comm::ClassStatistics& b = host.outcome.statistics[i];
      EXPECT_EQ(a.digest, b.digest) << path;
      EXPECT_EQ(a.total().packets, b.total().packets);
      EXPECT_EQ(a.total().lost_packets, b.total().lost_packets);
      EXPECT_GT(a.total().lost_packets, 0U);
      EXPECT_EQ(a.collectives, b.collectives);
      EXPECT_EQ(a.sampled_calls, b.sampled_calls);
      EXPECT_NEAR(a.nmse(), b.nmse(), 1e-2 * b.nmse());
    }
    ASSERT_TRUE(device.lines.back().divergence);
    EXPECT_NEAR(device.lines.back().divergence->rms, host.lines.back().divergence->rms,
                1e-2 * host.lines.back().divergence->rms);
  }
}

// Issue 15: bfloat16 on a device was the whole stream with its messages, so that packets halved and fates changed.
TEST_F(TrainerOnDevice, PrecisionMeansTheSamePacketsOnBoth) {
  using models::Precision;
  const Corpus corpus = tiny_corpus();
  std::map<Precision, std::uint64_t> packets;
  for (const Precision message : {Precision::kFloat32, Precision::kBfloat16}) {
    RunConfig config = tiny_config();
    config.training.steps = 3;
    for (const TrafficClass c : {TrafficClass::kTpForward, TrafficClass::kTpBackward}) lose(config, c, 0.1);
    config.training.precision.message = message;
    const TinyResult host = train_locally(config, corpus);
    for (const Precision compute : {Precision::kFloat32, Precision::kBfloat16}) {
      config.training.precision.compute = compute;
      std::vector<TinyResult> results = {train_locally(on_device(config), corpus)};
      if (compute == Precision::kFloat32 || models::has_bf16_products())
        results.push_back(train_locally(config, corpus));
      for (const TinyResult& result : results) {
        expect_same_curve(result, host, 0.05);
        ASSERT_EQ(result.outcome.statistics.size(), 2U);
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_EQ(result.outcome.statistics[i].digest, host.outcome.statistics[i].digest);
          EXPECT_EQ(result.outcome.statistics[i].total().packets, host.outcome.statistics[i].total().packets);
          EXPECT_EQ(result.outcome.statistics[i].total().lost_packets, host.outcome.statistics[i].total().lost_packets);
        }
      }
    }
    packets[message] = host.outcome.statistics[0].total().packets;
  }
  EXPECT_EQ(packets[Precision::kFloat32], 2 * packets[Precision::kBfloat16]);
}

TEST_F(TrainerOnDevice, ReplicasStayEqualWithoutLoss) {
  RunConfig config = on_device(tiny_config());
  config.parallel.tensor = 4;
  config.training.steps = 4;
  config.record.sample_every_steps = 4;
  const TinyResult result = train_locally(config, tiny_corpus());
  ASSERT_TRUE(result.lines.back().divergence);
  EXPECT_EQ(result.lines.back().divergence->max, 0.0);
}

TEST_F(TrainerOnDevice, LossOfNothingIsTheBareBackendBitForBit) {
  const Corpus corpus = tiny_corpus();
  RunConfig config = on_device(tiny_config());
  config.training.steps = 3;
  const TinyResult bare = train_locally(config, corpus);
  lose(config, TrafficClass::kTpForward, 0);
  lose(config, TrafficClass::kTpBackward, 0);
  EXPECT_EQ(trace_of(train_locally(config, corpus)), trace_of(bare));
}

TEST_F(TrainerOnDevice, Bfloat16NeedsNoProcessorThatMultipliesIt) {
  const Corpus corpus = tiny_corpus();
  RunConfig config = tiny_config();
  config.training.steps = 6;
  const TinyResult host = train_locally(config, corpus);
  config.training.precision = {models::Precision::kBfloat16, models::Precision::kBfloat16};
  // Eight bits of each activation: half a percent of the loss in a pass, more after some steps.
  expect_same_curve(train_locally(on_device(config), corpus), host, 0.05);
}

TEST_F(TrainerOnDevice, ARunOfASpecLeavesItsRecords) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the " + std::to_string(i % 7) + " quick foxes ";
  std::ofstream(folder.path() + "/corpus.txt") << text;
  const ResolvedRun run = resolved(
      R"({"name": "t", "device": "auto", "model": {"layers": 1, "width": 16, "heads": 2, "context": 8},
          "training": {"steps": 2, "batch_sequences": 2}, "parallel": {"tensor": 2},
          "network": {"payload_bytes": 64, "loss": {"model": "bernoulli", "loss_rate": "5%"}},
          "validation": {"tokens": 16}, "data": {"text": ")" +
      folder.path() + R"(/corpus.txt"}})");
  ASSERT_EQ(run.config.device, Device::kCuda);
  const RunDirectory directory = run_directory(folder.path(), "t", run.run_id);
  const nlohmann::json summary = execute_run(run, directory, {});
  EXPECT_EQ(summary.at("status"), "completed");
  EXPECT_EQ(comm::load_json(directory.spec()).at("device"), "cuda");
  // Issue 15: a record did not name its device.
  const nlohmann::json& provenance = summary.at("provenance");
  const comm::DeviceSurvey survey = comm::survey_devices();
  EXPECT_EQ(provenance.at("device").at("name"), survey.devices.at(0).name);
  EXPECT_EQ(provenance.at("device").at("memory_bytes"), survey.devices.at(0).total_bytes);
  EXPECT_EQ(provenance.at("device").at("driver_cuda"), survey.driver_version);
  EXPECT_EQ(provenance.at("libraries").at("CUDA"), survey.runtime_version);
  EXPECT_EQ(provenance.at("libraries").contains("cuBLASLt"), !comm::device_library_versions(survey).empty());
  EXPECT_FALSE(provenance.at("libraries").contains("NCCL")) << "the local backend does not use it";
  const models::StoredTensors weights = read_weights(directory.weights());
  EXPECT_EQ(weights.at("wte.weight").shape, (std::vector<std::uint64_t>{256, 16}));
}

void expect_weights_of_host(const RunConfig& config) {
  comm::run_ranks(2, std::chrono::seconds(30), [&](comm::Communicator& group) {
    TrainingModel host(config, group);
    set_starting_weights(host, config, group);
    TrainingModel device(on_device(config), group);
    set_starting_weights(device, config, group);
    const auto weights = [&](TrainingModel& model) {
      return models::gather_gpt2_weights(config.model, model.parameters(), group);
    };
    const models::StoredTensors a = weights(host);
    const models::StoredTensors b = weights(device);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a) EXPECT_EQ(b.at(name).bytes, tensor.bytes) << name;
  });
}

TEST_F(TrainerOnDevice, StartsFromTheHostsWeightsAndGivesItsOwn) { expect_weights_of_host(tiny_config()); }

TEST_F(TrainerOnDevice, DrawsTheHeadAndTheAdaptersThatAFileDoesNotHave) {
  const TemporaryFolder folder;
  RunConfig config = tiny_config();
  config.initial_weights = folder.path() + "/model.safetensors";
  RunConfig of_file = tiny_config();
  of_file.seeds.weights = 77;
  write_weights(config.initial_weights, initial_weights(of_file), {});
  config.model.classes = 3;
  config.model.lora = {2, 4, {"attn.c_attn"}};
  expect_weights_of_host(config);
}

}  // namespace
}  // namespace droptest::experiments::device_trainer_test
