// SPDX-License-Identifier: Apache-2.0
// Compares the model on a device with the model on the host: always on the fake device, and on a real device if there
// is one.
#include "models/gpt2/gpt2.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/error.h"
#include "tests/comm/recording_communicator.h"
#include "tests/models/device_pass.h"

namespace droptest::models::gpt2_cuda_test {
namespace {

using Gpt2OnDevice = OnDevice;

// Two layers; no extent is a multiple of another one.
const Gpt2Config kOdd{2, 36, 3, 12, 97};
// Head width 64, which has separate kernels, and more rows than one of their tiles.
const Gpt2Config kWide{1, 128, 2, 80, 131};

// Rounding of float: two such models differ from one in double by up to 1e-6 per tensor (docs/models.md).
constexpr double kFloatLoss = 2e-6;
constexpr double kFloatTensor = 1e-5;
// Rounding of activations to 8 bits, against double: 1.2e-2 per tensor and 9.1e-4 in the loss were measured for GPT-2
// 124M, and 8.1e-3 for a small model.
constexpr double kBf16Loss = 5e-3;
constexpr double kBf16Tensor = 4e-2;

TEST_F(Gpt2OnDevice, FloatMatchesTheHostsModel) {
  for (const Gpt2Config& config : {kOdd, kWide}) {
    const int length = config.context - 3;
    const Pass host = formula_pass<float>(config, 1, 1, 2, length);
    const Pass device = device_pass(config, {.length = length});
    EXPECT_NEAR(device.loss, host.loss, kFloatLoss);
    worst_difference(device.gradients, host.gradients, kFloatTensor);
    EXPECT_NEAR(device.norm, host.norm, kFloatTensor * host.norm);
  }
}

TEST_F(Gpt2OnDevice, Bfloat16MatchesTheHostsModelToItsRounding) {
  for (const Gpt2Config& config : {kOdd, kWide}) {
    const int length = config.context - 3;
    const Pass host = formula_pass<double>(config, 1, 1, 2, length);
    const Pass device = device_pass(config, {.precision = kBf16Compute, .length = length});
    EXPECT_NEAR(device.loss, host.loss, kBf16Loss);
    const double worst = worst_difference(device.gradients, host.gradients, kBf16Tensor);
    EXPECT_GT(worst, kFloatTensor);  // or it was not bfloat16
  }
}

TEST_F(Gpt2OnDevice, Float16MatchesTheHostsModelToItsRounding) {
  for (const Gpt2Config& config : {kOdd, kWide}) {
    const int length = config.context - 3;
    const Pass host = formula_pass<double>(config, 1, 1, 2, length);
    const Pass device = device_pass(config, {.precision = kFp16Compute, .length = length});
    EXPECT_NEAR(device.loss, host.loss, kBf16Loss / 8) << "three bits more of fraction";
    const double worst = worst_difference(device.gradients, host.gradients, kBf16Tensor / 4);
    EXPECT_GT(worst, kFloatTensor);  // or it was not float16
  }
}

// Probabilities of unlikely tokens are below the smallest number of float16; times the loss scale they are not.
TEST_F(Gpt2OnDevice, Float16HasTheGradientOfUnlikelyTokensByTheLossScale) {
  constexpr double kScale = 65536;
  const auto sharpen = [](auto parameters) {
    const auto gain = std::ranges::find(parameters, "ln_f.weight", [](const auto& p) { return p.name; });
    for (auto& value : gain->value) value *= 12;
  };
  const auto tokens = formula_tokens(0, 10, kOdd.vocabulary);
  const auto targets = formula_tokens(1, 10, kOdd.vocabulary);
  Tensors want;
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<double> model(kOdd, group, 1);
    set_formula_weights(model, group);
    sharpen(model.parameters());
    model.model().upload_values();
    model.forward_backward(tokens, targets, 2, 5, 1);
    add_to_whole(model, group, &Parameter<double>::gradient, want);
  });
  for (const std::uint64_t logits_bytes : {std::uint64_t{1} << 30U, std::uint64_t{1}}) {
    const DeviceRun run{.precision = kFp16Compute, .logits_bytes = logits_bytes};
    const Pass got = device_pass(kOdd, run, [&](Gpt2& model, const auto&, const auto&) {
      sharpen(model.parameters<float>());
      model.upload_values();
      model.forward_backward(tokens, targets, {2, 5}, kScale);
    });
    int unlikely = 0;
    const auto width = static_cast<std::size_t>(kOdd.width);
    for (std::size_t token = 0; token < static_cast<std::size_t>(kOdd.vocabulary); ++token) {
      if (std::ranges::count(tokens, static_cast<std::int32_t>(token)) > 0) continue;
      const auto row = [&](const Tensors& of) {
        const std::vector<double>& all = of.at("wte.weight");
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(token * width);
        return std::vector<double>(first, first + static_cast<std::ptrdiff_t>(width));
      };
      std::vector<double> exact = row(want);
      const double largest = std::abs(*std::ranges::max_element(exact, {}, [](double x) { return std::abs(x); }));
      if (largest < 1e-10 || largest > 3e-9) continue;
      ++unlikely;
      for (double& x : exact) x *= kScale;
      EXPECT_LE(relative_difference(row(got.gradients), exact), 0.2) << "token " << token << ", " << largest;
    }
    EXPECT_GT(unlikely, 3);
  }
}

TEST_F(Gpt2OnDevice, MessagesOfBfloat16AreRoundedAsOnTheHost) {
  const Gpt2Config config{2, 40, 5, 12, 97};
  for (const int ranks : {2, 3}) {
    const Pass exact = device_pass(config, {.ranks = ranks});
    const Pass device = device_pass(config, {.precision = kBf16Messages, .ranks = ranks});
    Pass host;
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      HostGpt2<float> model(config, group, 1, kBf16Messages);
      set_formula_weights<float>(config, model.parameters(), group);
      model.zero_gradients();
      const double loss = model.forward_backward(formula_tokens(0, 10, 97), formula_tokens(1, 10, 97), 2, 5, 1.0);
      if (group.rank() == 0) host.loss = loss;
    });
    // Equal but for parts that lie near the middle of two bfloat16 numbers.
    EXPECT_NEAR(device.loss, host.loss, 3e-4);
    EXPECT_NE(device.loss, exact.loss) << "nothing was rounded";
    EXPECT_NEAR(device.loss, exact.loss, kBf16Loss);
    worst_difference(device.gradients, exact.gradients, kBf16Tensor);
  }
}

// If messages are float, the addends of a sum over ranks are the sums of the GEMMs, which are not rounded before.
TEST_F(Gpt2OnDevice, PartsOfASumAreNotRoundedForMessagesOfFloat) {
  const Gpt2Config config{2, 40, 5, 12, 97};
  const Pass exact = formula_pass<double>(config, 1, 1, 2, 5);
  double carried_as_float = 0;
  double carried_rounded = 0;
  for (const int ranks : {2, 4}) {
    carried_as_float += worst_difference(device_pass(config, {.precision = kBf16Compute, .ranks = ranks}).gradients,
                                         exact.gradients, 5e-2);
    carried_rounded += worst_difference(device_pass(config, {.precision = kBf16Both, .ranks = ranks}).gradients,
                                        exact.gradients, 5e-2);
  }
  EXPECT_LT(carried_as_float, carried_rounded);
}

TEST_F(Gpt2OnDevice, RanksComputeWhatOneRankDoes) {
  for (const ModelPrecision& precision : kPrecisions) {
    const bool bf16 = precision != ModelPrecision{};
    // 97 tokens over 4 ranks: the last has a row of padding. 5 heads do not deal out evenly.
    const Gpt2Config config{2, 40, 5, 12, 97};
    const Pass one = device_pass(config, {.precision = precision});
    for (const int ranks : {2, 4}) {
      const Pass many = device_pass(config, {.precision = precision, .ranks = ranks});
      EXPECT_NEAR(many.loss, one.loss, bf16 ? kBf16Loss : kFloatLoss);
      worst_difference(many.gradients, one.gradients, bf16 ? 5e-2 : kFloatTensor);
      EXPECT_NEAR(many.norm, one.norm, (bf16 ? kBf16Tensor : kFloatTensor) * one.norm);
      for (const std::vector<double>& replica : many.replicated) EXPECT_EQ(replica, many.replicated[0]);
      for (const double loss : many.losses) EXPECT_EQ(loss, many.loss);
    }
  }
}

// Four ranks have 3, 3, 2 and 2 of 10 rows; the last of 6 ranks has none of 5 rows.
TEST_F(Gpt2OnDevice, RanksThatCutTokensComputeWhatOneRankDoes) {
  SlotOptions cut;
  cut.tensor_sequence = true;
  for (const ModelPrecision& precision : kPrecisions) {
    const bool bf16 = precision != ModelPrecision{};
    const Gpt2Config config{2, 48, 6, 12, 97};
    for (const auto& [ranks, batch] : {std::pair(2, 2), std::pair(4, 2), std::pair(6, 1)}) {
      const Pass one = device_pass(config, {.precision = precision, .batch = batch});
      const Pass many = device_pass(config, {.precision = precision, .ranks = ranks, .batch = batch, .slots = cut});
      EXPECT_NEAR(many.loss, one.loss, bf16 ? kBf16Loss : kFloatLoss);
      worst_difference(many.gradients, one.gradients, bf16 ? 5e-2 : kFloatTensor);
      for (const std::vector<double>& replica : many.replicated) EXPECT_EQ(replica, many.replicated[0]);
    }
  }
}

// Ranks that cut tokens draw masks for their own rows, and recomputed blocks draw them again.
TEST_F(Gpt2OnDevice, DropsWhatTheHostDrops) {
  SlotOptions cut;
  cut.tensor_sequence = true;
  cut.recompute = {Recompute::kBlock, Recompute::kSelective};
  for (Gpt2Config config : {kOdd, kWide}) {
    config.dropout = {0.2, 0.15, 0.1, 9};
    const int length = config.context - 3;
    const Pass host = formula_pass<float>(config, 1, 1, 2, length);
    const Pass device = device_pass(config, {.length = length});
    EXPECT_NEAR(device.loss, host.loss, kFloatLoss);
    worst_difference(device.gradients, host.gradients, kFloatTensor);
    for (const ModelPrecision& precision : {kBf16Compute, kFp16Compute}) {
      const Pass narrow = device_pass(config, {.precision = precision, .length = length});
      EXPECT_NEAR(narrow.loss, host.loss, kBf16Loss);
      worst_difference(narrow.gradients, host.gradients, kBf16Tensor);
    }
  }
  Gpt2Config config{2, 48, 6, 12, 97};
  config.dropout = {0.2, 0.15, 0.1, 9};
  const Pass host = formula_pass<float>(config, 1, 1, 2, 5);
  for (const SlotOptions& slots : {SlotOptions{}, cut}) {
    const Pass many = device_pass(config, {.ranks = 2, .slots = slots});
    EXPECT_NEAR(many.loss, host.loss, kFloatLoss);
    worst_difference(many.gradients, host.gradients, kFloatTensor);
  }
}

TEST_F(Gpt2OnDevice, ARankWithNothingButPaddingTakesPart) {
  const Gpt2Config config{1, 24, 6, 8, 7};  // 7 tokens over 6 ranks: two each, the last two have none
  const Pass host = formula_pass<float>(config, 1, 1, 2, 5);
  const Pass device = device_pass(config, {.ranks = 6});
  EXPECT_NEAR(device.loss, host.loss, kFloatLoss);
  worst_difference(device.gradients, host.gradients, kFloatTensor);
}

TEST_F(Gpt2OnDevice, ChunksOfLogitsChangeOnlyRounding) {
  for (const int ranks : {1, 2}) {
    const DeviceRun whole{.ranks = ranks, .batch = 3, .length = 12};
    DeviceRun cut = whole;
    cut.logits_bytes = 128 * sizeof(float) * 7;  // 7 of 36 rows at a time
    const Pass a = device_pass(kOdd, whole);
    const Pass b = device_pass(kOdd, cut);
    EXPECT_NEAR(b.loss, a.loss, kFloatLoss);
    worst_difference(b.gradients, a.gradients, kFloatTensor);
  }
}

TEST_F(Gpt2OnDevice, AccumulatesMicroBatches) {
  const DeviceRun run{.ranks = 2, .batch = 4};
  const Pass whole = device_pass(kOdd, run);
  const Pass halves = device_pass(kOdd, run, [](Gpt2& model, const auto& tokens, const auto& targets) {
    // Sums and gradients of an earlier step take no part.
    model.forward_backward(tokens, targets, {4, 5}, 3.0);
    model.step_sums();
    model.zero_gradients();
    for (const std::size_t half : {0, 1}) {
      model.forward_backward(std::span(tokens).subspan(10 * half, 10), std::span(targets).subspan(10 * half, 10),
                             {2, 5}, 0.5);
    }
  });
  EXPECT_NEAR(halves.loss / 2, whole.loss, kFloatLoss);
  worst_difference(halves.gradients, whole.gradients, kFloatTensor);
}

TEST_F(Gpt2OnDevice, CountsTheLossesOfManyMicroBatches) {
  const Gpt2Config tiny{1, 8, 1, 4, 11};
  const DeviceRun run{.batch = 1, .length = 3};
  const Pass one = device_pass(tiny, run);
  const Pass many = device_pass(tiny, run, [](Gpt2& model, const auto& tokens, const auto& targets) {
    for (int i = 0; i < 130; ++i) model.forward_backward(tokens, targets, {1, 3}, 1.0 / 130);
  });
  EXPECT_NEAR(many.loss, 130 * one.loss, 1e-9);
  worst_difference(many.gradients, one.gradients, kFloatTensor);
}

TEST_F(Gpt2OnDevice, EvaluationIsTheLossOfTheForwardPass) {
  for (const ModelPrecision& precision : kPrecisions) {
    for (const int ranks : {1, 3}) {
      device_pass(kOdd, {.precision = precision, .ranks = ranks},
                  [](Gpt2& model, const auto& tokens, const auto& targets) {
                    const double before = model.evaluate(tokens, targets, {2, 5});
                    model.forward_backward(tokens, targets, {2, 5}, 1.0);
                    EXPECT_EQ(model.step_sums().losses, before);
                    EXPECT_EQ(model.evaluate(tokens, targets, {2, 5}), before);
                    // Other shapes come and go, as the last batches of an evaluation do.
                    model.evaluate(std::span(tokens).first(3), std::span(targets).first(3), {1, 3});
                    EXPECT_EQ(model.evaluate(tokens, targets, {2, 5}), before);
                  });
    }
  }
}

TEST_F(Gpt2OnDevice, ShapesMayChangeFromPassToPass) {
  const DeviceRun run{.batch = 3, .length = 12};
  const Pass fresh = device_pass(kOdd, run);
  const Pass after = device_pass(kOdd, run, [](Gpt2& model, const auto& tokens, const auto& targets) {
    model.forward_backward(std::span(tokens).first(5), std::span(targets).first(5), {1, 5}, 1.0);
    model.zero_gradients();
    model.forward_backward(tokens, targets, {3, 12}, 1.0);
  });
  EXPECT_EQ(after.loss, fresh.loss);
  EXPECT_EQ(after.gradients, fresh.gradients);
}

TEST_F(Gpt2OnDevice, MicroBatchesMayGrowWithinAStep) {
  const DeviceRun run{.batch = 8, .length = 12};
  const auto of_both = [](bool grow) {
    return [grow](Gpt2& model, const auto& tokens, const auto& targets) {
      // The memory of an evaluation is enough for both passes, which then come without a wait between them.
      if (grow) model.evaluate(tokens, targets, {8, 12});
      model.forward_backward(std::span(tokens).first(3), std::span(targets).first(3), {1, 3}, 0.5);
      if (!grow) model.step_sums();
      model.forward_backward(std::span(tokens).first(6), std::span(targets).first(6), {2, 3}, 0.5);
    };
  };
  EXPECT_EQ(device_pass(kOdd, run, of_both(true)).gradients, device_pass(kOdd, run, of_both(false)).gradients);
}

/// Four steps on two sequences of five tokens.
void expect_updates_of_host(const Gpt2Config& model_config, std::span<const std::int32_t> targets) {
  constexpr int kSteps = 4;
  // Adam divides gradients by their own size. An epsilon far above their rounding keeps it from growing to whole steps,
  // above all in the biases of keys, whose gradient is zero but for rounding.
  OptimizerConfig config;
  config.weight_decay = 0.3;
  config.epsilon = 1e-3;
  const auto tokens = formula_tokens(0, 10, model_config.vocabulary);
  for (const int ranks : {1, 2}) {
    Tensors host;
    Tensors device;
    std::mutex mutex;
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      HostGpt2<float> model(model_config, group, 1, {}, config);
      set_formula_weights(model, group);
      for (int step = 0; step < kSteps; ++step) {
        model.zero_gradients();
        model.forward_backward(tokens, targets, 2, 5, 1.0);
        model.step(0.01, 0.5);
      }
      const std::lock_guard lock(mutex);
      add_to_whole(model, group, &Parameter<float>::value, host);
    });
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      const auto model = formula_device_model(model_config, group, {}, config);
      for (int step = 0; step < kSteps; ++step) {
        model->zero_gradients();
        model->forward_backward(tokens, targets, {2, 5}, 1.0);
        model->step(0.01, 0.5);
      }
      model->download(Gpt2::Fields::kValues);
      const std::lock_guard lock(mutex);
      add_to_whole<float>(model_config, model->parameters<float>(), group, &Parameter<float>::value, device);
    });
    worst_difference(device, host, kFloatTensor);
  }
}

TEST_F(Gpt2OnDevice, UpdatesAsTheHostsAdamWDoes) {
  expect_updates_of_host(kOdd, formula_tokens(1, 10, kOdd.vocabulary));
}

/// Three classes, of which the two sequences have the last and the first.
Gpt2Config classifier() {
  Gpt2Config config = kOdd;
  config.classes = 3;
  config.class_weights = {0.25, 1, 4};
  return config;
}
std::vector<std::int32_t> two_labels() {
  std::vector<std::int32_t> targets(10, kIgnoredTarget);
  targets[3] = 2;
  targets[9] = 0;
  return targets;
}

TEST_F(Gpt2OnDevice, ClassWeightsAndLearningRatesOfLayersAreTheHosts) {
  Gpt2Config config = classifier();
  config.tensor_rules = {{"w*e.*", 0}, {"h.0.*", 0.25}, {"h.1.*", 0.5}};
  expect_updates_of_host(config, two_labels());
}

TEST_F(Gpt2OnDevice, LoraTrainsTheHostsAdapters) {
  Gpt2Config config = classifier();
  config.lora = {2, 3.0, lora_targets()};
  expect_updates_of_host(config, two_labels());
}

TEST_F(Gpt2OnDevice, MakesTheHostModelsCollectivesInItsOrder) {
  const auto tokens = formula_tokens(0, 10, kOdd.vocabulary);
  const auto targets = formula_tokens(1, 10, kOdd.vocabulary);
  for (const int ranks : {1, 3}) {
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      comm::RecordingCommunicator host(group);
      HostGpt2<float> model(kOdd, host, 1);
      model.forward_backward(tokens, targets, 2, 5, 1.0);
      model.evaluate(tokens, targets, 2, 5);
      comm::RecordingCommunicator device(group);
      const auto twin = formula_device_model(kOdd, device, {});
      EXPECT_THAT(device.calls, testing::IsEmpty());
      twin->zero_gradients();
      twin->forward_backward(tokens, targets, {2, 5}, 1.0);
      twin->evaluate(tokens, targets, {2, 5});
      if (ranks == 1) {
        // A single rank has all columns of its logits, and needs no collective for them.
        std::erase_if(host.calls, [](const std::string& call) { return call.find("cross_entropy") != call.npos; });
      }
      EXPECT_EQ(device.calls, host.calls);
    });
  }
}

TEST_F(Gpt2OnDevice, RefusesBatchesThatItCannotRead) {
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    const auto model = formula_device_model(kOdd, group, {});
    const std::vector<std::int32_t> good(4, 1);
    std::vector<std::int32_t> bad(4, 1);
    bad[2] = 97;
    EXPECT_THROW(model->forward_backward(bad, good, {1, 4}, 1.0), ConfigError);
    EXPECT_THROW(model->evaluate(good, bad, {1, 4}), ConfigError);
    EXPECT_THROW(model->evaluate(good, good, {1, 5}), ConfigError);
    EXPECT_THROW(Gpt2({1, 10, 3, 4, 11}, make_cuda_ops({}, group)), ConfigError);
  });
}

}  // namespace
}  // namespace droptest::models::gpt2_cuda_test
