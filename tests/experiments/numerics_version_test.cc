// SPDX-License-Identifier: Apache-2.0
// The numbers that numerics_version.h stands for. double is nearly exact; float's products are those of a library that
// chooses its kernels by the processor.
#include "experiments/spec/numerics_version.h"

#include <gtest/gtest.h>

#include <iomanip>
#include <mutex>

#include "comm/lossy/lossy_communicator.h"
#include "models/optimizer.h"
#include "tests/experiments/tiny_run.h"
#include "tests/models/host_gpt2.h"

namespace droptest::experiments::numerics_version_test {
namespace {

constexpr double kDoubleTolerance = 1e-12;
constexpr double kFloatTolerance = 1e-5;

struct Golden {
  const char* name;
  double loss_rate;  ///< of the forward pass; negative: no loss layer
  double in_double;  ///< train loss of the last step
  double in_float;   ///< final validation loss
};

// Made with this test, which prints its losses.
constexpr Golden kGolden[] = {
    {"lossless", -1, 2.5470184313139153, 2.3198519699222464},
    {"lossy", 0.1, 2.5702040680098883, 2.3355668080633967},
};

RunConfig config_of(const Golden& golden) {
  RunConfig config = tiny_config();
  config.training.steps = 6;
  if (golden.loss_rate >= 0) {
    lose(config, sim::TrafficClass::kTpForward, golden.loss_rate);
    config.network.of(sim::TrafficClass::kTpForward)->gather.fill = comm::Fill::kStale;
  }
  return config;
}

/// Trains in double as the trainer does in float; the train loss of the last step.
double train_in_double(const RunConfig& config, const Corpus& corpus) {
  double last = 0;
  comm::run_ranks(config.parallel.world_size(), std::chrono::seconds(30), [&](comm::Communicator& group) {
    comm::LossyOptions options;
    options.network = config.network;
    options.network.seed = config.seeds.network;
    comm::LossyCommunicator network(group, options);
    models::HostGpt2<double> model(config.model, network, 1, {}, config.training.optimizer);
    model.initialize(config.seeds.weights);
    const TrainingBatches batches(corpus.training, config.seeds.data, config.training.batch_sequences,
                                  config.training.sequence_tokens);
    double loss = 0;
    for (std::uint64_t step = 1; step <= config.training.steps; ++step) {
      network.begin_step(step);
      model.zero_gradients();
      const Batch batch = batches.batch(step, 0);
      loss = model.forward_backward(batch.tokens, batch.targets, batch.sequences, batch.length, 1);
      const double norm = model.gradient_norm(group);
      model.step(config.training.learning_rate.at(step - 1), models::clip_scale(norm, config.training.gradient_clip));
    }
    if (group.rank() == 0) last = loss;
  });
  return last;
}

TEST(NumericsVersion, StandsForTheGoldenLosses) {
  const Corpus corpus = tiny_corpus();
  for (const Golden& golden : kGolden) {
    const RunConfig config = config_of(golden);
    const double in_double = train_in_double(config, corpus);
    const double in_float = train_locally(config, corpus).outcome.validation_final_loss.value();
    const auto advice = [&](double got) {
      std::ostringstream text;
      text << golden.name << ": got " << std::setprecision(17) << got << ". Where results were to move: raise "
           << "kNumericsVersion in experiments/spec/numerics_version.h, put the new losses here, and add a line to "
           << "docs/results_changes.md. Where they were not, this is a bug of the change.";
      return text.str();
    };
    EXPECT_NEAR(in_double, golden.in_double, kDoubleTolerance) << advice(in_double);
    EXPECT_NEAR(in_float, golden.in_float, kFloatTolerance) << advice(in_float);
  }
  EXPECT_EQ(kNumericsVersion, 1) << "with another version come other golden losses";
}

}  // namespace
}  // namespace droptest::experiments::numerics_version_test
