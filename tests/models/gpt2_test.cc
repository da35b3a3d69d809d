// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/gpt2.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/error.h"
#include "tests/models/formula_model.h"
#include "tests/models/planned_bytes.h"

namespace droptest::models::gpt2_test {
namespace {

constexpr Gpt2Config kTiny{2, 32, 4, 12, 97};

/// The message of the ConfigError that `body` throws.
template <class Body>
std::string config_error(const Body& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

void with_tiny_model(const std::function<void(HostGpt2<float>&)>& body) {
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<float> model(kTiny, group, 1);
    model.initialize(1);
    body(model);
  });
}

TEST(Gpt2Config, ParameterCountsAreThePublishedOnes) {
  EXPECT_EQ(parameter_count(gpt2_preset("nano").config), 842496U);
  EXPECT_EQ(parameter_count(gpt2_preset("micro").config), 10795008U);
  EXPECT_EQ(parameter_count(gpt2_preset("small").config), 124439808U);
  EXPECT_EQ(parameter_count(gpt2_preset("medium").config), 354823168U);
  EXPECT_EQ(parameter_count(gpt2_preset("large").config), 774030080U);
  EXPECT_EQ(parameter_count(gpt2_preset("xl").config), 1557611200U);
  for (const Gpt2Preset& preset : gpt2_presets()) EXPECT_NO_THROW(validate(preset.config, 1)) << preset.name;
}

TEST(Gpt2Config, RefusesShapesThatNoModelHas) {
  EXPECT_THAT(config_error([] { gpt2_preset("giant"); }),
              testing::AllOf(testing::HasSubstr("\"giant\""), testing::HasSubstr("nano, micro, small")));
  EXPECT_THAT(config_error([] { validate({2, 30, 4, 12, 97}, 1); }), testing::HasSubstr("divisor of width = 30"));
  EXPECT_THAT(config_error([] { validate({0, 32, 4, 12, 97}, 1); }), testing::HasSubstr("layers: got 0"));
  EXPECT_THAT(config_error([] { validate({2, -32, 4, 12, 97}, 1); }), testing::HasSubstr("width: got -32"));
  EXPECT_THAT(config_error([] { validate({2, 32, 0, 12, 97}, 1); }), testing::HasSubstr("heads: got 0"));
  EXPECT_THAT(config_error([] { validate({2, 32, 4, 0, 97}, 1); }), testing::HasSubstr("context: got 0"));
  EXPECT_THAT(config_error([] { validate({2, 32, 4, 12, 0}, 1); }), testing::HasSubstr("vocabulary: got 0"));
  EXPECT_THAT(config_error([] { validate({2, 32, 4, 12, 97}, 5); }), testing::HasSubstr("heads = 4"));
  EXPECT_THAT(config_error([] { validate({2, 32, 4, 12, 3}, 4); }), testing::HasSubstr("vocabulary = 3"));
  EXPECT_THAT(config_error([] { validate({2, 32, 4, 12, 97}, 0); }), testing::HasSubstr("size: got 0"));
}

TEST(Gpt2, RefusesTokensAndShapesOutOfRange) {
  with_tiny_model([](HostGpt2<float>& model) {
    const std::vector<std::int32_t> good(12, 5);
    std::vector<std::int32_t> bad = good;
    bad[7] = 97;
    EXPECT_THAT(config_error([&] { model.evaluate(bad, good, 1, 12); }), testing::HasSubstr("tokens[7]: got 97"));
    bad[7] = -1;
    EXPECT_THAT(config_error([&] { model.forward_backward(good, bad, 1, 12, 1.0); }),
                testing::HasSubstr("targets[7]: got -1"));
    EXPECT_THAT(config_error([&] { model.evaluate(good, good, 1, 13); }), testing::HasSubstr("context = 12"));
    EXPECT_THAT(config_error([&] { model.forward_backward(good, good, 2, 12, 1.0); }),
                testing::HasSubstr("batch x length = 24"));
    model.zero_gradients();
    EXPECT_THROW(model.model().step_sums(), CheckError) << "no pass yet";
  });
}

TEST(Gpt2, StartsAtTheLossOfAUniformGuess) {
  // Logits have a deviation of about 0.02 sqrt(32) = 0.11: the loss is ln V to a few percent of a nat.
  with_tiny_model([](HostGpt2<float>& model) {
    EXPECT_NEAR(model.evaluate(formula_tokens(0, 24, 97), formula_tokens(1, 24, 97), 2, 12), std::log(97.0), 0.1);
  });
}

TEST(Gpt2, InitialWeightsHaveGpt2sMomentsAndFollowTheSeed) {
  const auto weights = [](std::uint64_t seed) {
    std::vector<std::vector<float>> values;
    comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
      HostGpt2<float> model({2, 128, 4, 64, 256}, group, 1);
      model.initialize(seed);
      for (const auto& parameter : model.parameters()) {
        values.emplace_back(parameter.value.begin(), parameter.value.end());
        if (parameter.shape.size() == 1) {
          const float constant = parameter.group == "layer_norm" && parameter.name.ends_with("weight") ? 1 : 0;
          EXPECT_THAT(parameter.value, testing::Each(constant)) << parameter.name;
          continue;
        }
        // Two branches per block: c_proj is scaled by 1 / sqrt(2 L) = 1/2.
        const double deviation = parameter.name.ends_with("c_proj.weight") ? 0.01 : 0.02;
        double sum = 0;
        double squares = 0;
        for (const float value : parameter.value) {
          sum += static_cast<double>(value);
          squares += static_cast<double>(value) * static_cast<double>(value);
        }
        const auto n = static_cast<double>(parameter.value.size());
        EXPECT_LT(std::abs(sum / (deviation * std::sqrt(n))), 4) << parameter.name;
        EXPECT_LT(std::abs((squares / (deviation * deviation) - n) / std::sqrt(2 * n)), 4) << parameter.name;
      }
    });
    return values;
  };
  const auto first = weights(1);
  EXPECT_EQ(weights(1), first);
  EXPECT_NE(weights(2)[0], first[0]);
  EXPECT_NE(first[4], first[4 + 12]) << "two layers must not share a stream";
}

TEST(Gpt2, BackwardAccumulatesWithItsScale) {
  comm::run_ranks(2, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<double> model(kTiny, group, 1);
    set_formula_weights(model, group);
    const auto gradients = [&] {
      std::vector<double> all;
      for (const auto& parameter : model.parameters()) {
        all.insert(all.end(), parameter.gradient.begin(), parameter.gradient.end());
      }
      return all;
    };
    // A batch of two sequences, against its halves with scale 1/2 each; the first half in two passes.
    const auto tokens = formula_tokens(0, 24, 97);
    const auto targets = formula_tokens(1, 24, 97);
    model.forward_backward(tokens, targets, 2, 12, 1.0);
    const std::vector<double> whole = gradients();
    model.zero_gradients();
    EXPECT_THAT(gradients(), testing::Each(0));
    const std::span<const std::int32_t> t(tokens);
    const std::span<const std::int32_t> u(targets);
    model.forward_backward(t.first(12), u.first(12), 1, 12, 0.3);
    model.forward_backward(t.first(12), u.first(12), 1, 12, 0.2);
    model.forward_backward(t.last(12), u.last(12), 1, 12, 0.5);
    EXPECT_LE(relative_difference(gradients(), whole), 1e-14);
  });
}

TEST(Gpt2, EvaluationHasTheBitsOfTrainingsLossAndLeavesNothingBehind) {
  for (const int ranks : {1, 2}) {
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      HostGpt2<float> model({3, 32, 4, 12, 97}, group, 1);
      set_formula_weights(model, group);
      const auto tokens = formula_tokens(0, 24, 97);
      const auto targets = formula_tokens(1, 24, 97);
      const auto gradients_of_a_step = [&] {
        model.zero_gradients();
        model.forward_backward(tokens, targets, 2, 12, 1.0);
        std::vector<float> all;
        for (const auto& parameter : model.parameters()) {
          all.insert(all.end(), parameter.gradient.begin(), parameter.gradient.end());
        }
        return all;
      };
      const double fresh = model.evaluate(tokens, targets, 2, 12);
      EXPECT_EQ(model.forward_backward(tokens, targets, 2, 12, 1.0), fresh);
      const std::vector<float> want = gradients_of_a_step();
      EXPECT_EQ(model.evaluate(tokens, targets, 2, 12), fresh);
      EXPECT_EQ(gradients_of_a_step(), want);
    });
  }
}

TEST(Gpt2, GradientsThatCountAsZeroAreZerosWhereverTheyAreRead) {
  with_tiny_model([](HostGpt2<float>& model) {
    const auto tokens = formula_tokens(0, 24, 97);
    model.forward_backward(tokens, tokens, 2, 12, 1.0);
    model.zero_gradients();
    const std::span<Parameter<float>> parameters = model.parameters();
    for (const auto& parameter : parameters) EXPECT_THAT(parameter.gradient, testing::Each(0.0F)) << parameter.name;
    // Gradients that a caller writes then stay, and the next pass adds to them.
    parameters[2].gradient[0] = 5.0F;
    EXPECT_EQ(model.parameters()[2].gradient[0], 5.0F);
    model.forward_backward(tokens, tokens, 2, 12, 1.0);
    const float added = model.parameters()[2].gradient[0];
    model.zero_gradients();
    model.forward_backward(tokens, tokens, 2, 12, 1.0);
    EXPECT_EQ(added, 5.0F + model.parameters()[2].gradient[0]);
  });
}

TEST(Gpt2, PaddingRowsStayZeroThroughTraining) {
  comm::run_ranks(4, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<float> model({1, 32, 4, 12, 5}, group, 1);
    model.initialize(1);
    const auto tokens = formula_tokens(0, 12, 5);
    for (int step = 0; step < 3; ++step) {
      model.zero_gradients();
      model.forward_backward(tokens, tokens, 1, 12, 1.0);
      model.step(1e-2, 1.0);
    }
    const Gpt2Part part = gpt2_part(model.config(), 4, group.rank());
    const Parameter<float>& wte = model.parameters()[0];
    ASSERT_EQ(wte.shape, (std::vector<std::uint64_t>{2, 32}));
    EXPECT_THAT(wte.value.subspan(part.vocabulary.count * 32), testing::Each(0.0F));
    EXPECT_THAT(wte.gradient.subspan(part.vocabulary.count * 32), testing::Each(0.0F));
  });
}

/// Losses of a few AdamW steps on one repeated batch, then the final weights.
std::vector<double> training(int ranks, int threads, int steps) {
  std::vector<double> trace;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    // Wide and long enough that every kernel has several chunks.
    HostGpt2<float> model({2, 160, 4, 80, 300}, group, threads);
    model.initialize(5);
    const auto tokens = formula_tokens(0, 4 * 80, 300);
    const auto targets = formula_tokens(1, 4 * 80, 300);
    std::vector<double> own;
    for (int step = 0; step < steps; ++step) {
      model.zero_gradients();
      own.push_back(model.forward_backward(tokens, targets, 4, 80, 1.0));
      own.push_back(model.gradient_norm());
      model.step(3e-3, clip_scale(own.back(), 1.0));
    }
    for (const auto& parameter : model.parameters()) {
      own.insert(own.end(), parameter.value.begin(), parameter.value.end());
    }
    if (group.rank() == 0) trace = own;
  });
  return trace;
}

TEST(Gpt2, TrainingHasTheSameBitsForAnyThreadsAndEveryRun) {
  for (const int ranks : {1, 2}) {
    const std::vector<double> one = training(ranks, 1, 3);
    EXPECT_EQ(training(ranks, 1, 3), one);
    EXPECT_EQ(training(ranks, 2, 3), one);
    EXPECT_EQ(training(ranks, 3, 3), one);
  }
}

TEST(Gpt2, TakesTheMemoryThatWasPlanned) {
  for (const int layers : {1, 2, 3, 4, 7}) {
    for (const int ranks : {1, 3}) {
      comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
        const Gpt2Config config{layers, 32, 4, 12, 97};
        HostGpt2<float> model(config, group, 2);
        const auto tokens = formula_tokens(0, 24, 97);
        model.forward_backward(tokens, tokens, 2, 12, 1.0);
        model.evaluate(tokens, tokens, 2, 12);
        const auto form = host_ops_form({.type = comm::ElementType::kFloat32, .threads = 2}, ranks);
        EXPECT_EQ(planned_bytes(config, ranks, group.rank(), *form, {2, 12}), model.model().memory_bytes());
      });
    }
  }
  const auto form = host_ops_form({}, 1);
  const std::int64_t absurd = std::int64_t{1} << 40U;
  EXPECT_EQ(pass_use({1, 32, 4, 12, 97}, {}, *form, {absurd, absurd}).memory, std::uint64_t{1} << 63U);
}

TEST(Gpt2, TrainingLowersTheLoss) {
  const std::vector<double> trace = training(2, 1, 15);
  EXPECT_NEAR(trace[0], std::log(300.0), 0.1);
  EXPECT_LT(trace[2 * 14], trace[0] - 1.5);
}

TEST(Gpt2, AFewerTokensBatchAfterALargerOneGivesItsOwnLoss) {
  const auto tokens = formula_tokens(0, 24, 97);
  double alone = 0;
  with_tiny_model([&](HostGpt2<float>& model) {
    alone = model.evaluate(std::span(tokens).first(7), std::span(tokens).last(7), 1, 7);
  });
  with_tiny_model([&](HostGpt2<float>& model) {
    model.forward_backward(tokens, tokens, 2, 12, 1.0);
    EXPECT_EQ(model.evaluate(std::span(tokens).first(7), std::span(tokens).last(7), 1, 7), alone);
    model.zero_gradients();
    EXPECT_EQ(model.forward_backward(std::span(tokens).first(7), std::span(tokens).last(7), 1, 7, 1.0), alone);
  });
}

}  // namespace
}  // namespace droptest::models::gpt2_test
