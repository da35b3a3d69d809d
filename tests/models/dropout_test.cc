// SPDX-License-Identifier: Apache-2.0
// Compares dropout with the simplest implementations of the formulas, with masks from separate Philox calls.
#include "models/kernels/dropout.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "models/kernels/attention_head.h"
#include "models/kernels/attention_kernel.h"
#include "models/kernels/chunks.h"
#include "models/kernels/layernorm.h"
#include "tests/models/dropout_draws.h"
#include "tests/models/host_gpt2.h"
#include "tests/models/kernel_numbers.h"
#include "tests/models/parallel_training.h"

namespace droptest::models::dropout_test {
namespace {

using sim::Purpose;

DropoutMask mask(double probability, Purpose purpose = Purpose::kResidualDropout) {
  DropoutMask m;
  m.probability = probability;
  m.seed = 77;
  m.purpose = purpose;
  m.step = 5;
  m.place = 3;
  m.first_sample = 6;
  m.length = 7;
  return m;
}

template <class T>
std::vector<double> drawn(const DropoutRow& row, std::int64_t first, std::int64_t count) {
  std::vector<double> factors(static_cast<std::size_t>(count));
  for_dropped_row<T>(row, first, count,
                     [&](std::int64_t i, T f) { factors[static_cast<std::size_t>(i)] = static_cast<double>(f); });
  return factors;
}

TEST(Dropout, AMaskIsThatOfItsDefinition) {
  const DropoutMask m = mask(0.3);
  for (const std::int64_t first : {0, 1, 63, 64, 130}) {
    for (const std::int64_t count : {0, 1, 15, 64, 65, 200}) {
      const auto doubles = drawn<double>(DropoutRow(m, 8, 2, 11), first, count);
      const auto floats = drawn<float>(DropoutRow(m, 8, 2, 11), first, count);
      for (std::int64_t i = 0; i < count; ++i) {
        const double want = factor_of(m, 8, 2, 11, first + i);
        ASSERT_EQ(doubles[static_cast<std::size_t>(i)], want);
        ASSERT_EQ(floats[static_cast<std::size_t>(i)], static_cast<double>(static_cast<float>(want)));
      }
    }
  }
}

TEST(Dropout, KnownAnswers) {
  // The first 64 elements of a row, with x for dropped ones, so that no later change alters a mask.
  std::string text;
  for (const double f : drawn<double>(DropoutRow(mask(0.5), 0, 0, 0), 0, 64)) text += f == 0 ? 'x' : '.';
  EXPECT_EQ(text, ".x.x..x..xx.x...x.x.x....x..xx..x...xx.xxxx....x.x.x.xx.xxxx.xx.");
}

/// Masks of many rows as one sequence of 0 and 1.
std::vector<int> lost_bits(const DropoutMask& m, std::int64_t sample, std::int64_t head, std::int64_t position) {
  std::vector<int> bits;
  for (std::int64_t p = 0; p < 40; ++p) {
    for (const double f : drawn<double>(DropoutRow(m, sample, head, position + p), 0, 1000)) bits.push_back(f == 0);
  }
  return bits;
}

TEST(Dropout, TheShareOfLostElementsIsTheProbability) {
  for (const double p : {0.001, 0.1, 0.5, 0.9}) {
    const std::vector<int> bits = lost_bits(mask(p), 0, 0, 0);
    const auto n = static_cast<double>(bits.size());
    double lost = 0;
    double pairs = 0;
    for (std::size_t i = 0; i < bits.size(); ++i) {
      lost += bits[i];
      pairs += bits[i] * bits[(i + 1) % bits.size()];
    }
    EXPECT_LT(std::abs(lost - n * p) / std::sqrt(n * p * (1 - p)), 4) << p;
    EXPECT_LT(std::abs(pairs - n * p * p) / std::sqrt(n * p * p * (1 - p * p)), 4.5) << p << ": neighbours";
  }
}

TEST(Dropout, MasksOfOtherStepsSamplesLayersHeadsAndPlacesAreIndependent) {
  const double p = 0.3;
  const DropoutMask one = mask(p);
  const std::vector<int> base = lost_bits(one, 0, 0, 0);
  const auto expect_independent = [&](const char* what, const std::vector<int>& other) {
    const auto n = static_cast<double>(base.size());
    double both = 0;
    for (std::size_t i = 0; i < base.size(); ++i) both += base[i] * other[i];
    const double q = p * p;
    EXPECT_LT(std::abs(both - n * q) / std::sqrt(n * q * (1 - q)), 4.5) << what;
  };
  const auto with = [&](const std::function<void(DropoutMask&)>& change) {
    DropoutMask other = one;
    change(other);
    return lost_bits(other, 0, 0, 0);
  };
  expect_independent("step", with([](DropoutMask& m) { ++m.step; }));
  expect_independent("layer", with([](DropoutMask& m) { ++m.place; }));
  expect_independent("seed", with([](DropoutMask& m) { ++m.seed; }));
  expect_independent("purpose", with([](DropoutMask& m) { m.purpose = Purpose::kAttentionDropout; }));
  expect_independent("sample", lost_bits(one, 1, 0, 0));
  expect_independent("head", lost_bits(one, 0, 1, 0));
  expect_independent("position", lost_bits(one, 0, 0, 40));
}

TEST(Dropout, ALargerProbabilityLosesTheSameElementsAndMore) {
  const std::vector<int> few = lost_bits(mask(0.1), 0, 0, 0);
  const std::vector<int> many = lost_bits(mask(0.2), 0, 0, 0);
  for (std::size_t i = 0; i < few.size(); ++i) ASSERT_LE(few[i], many[i]);
}

// Tokens 1, 2 and 5 of each of three sequences.
TEST(Dropout, RowsMayBeOfTwoPlacesInASequence) {
  constexpr std::int64_t kWidth = 70;
  constexpr std::array<std::int64_t, 3> kPositions = {1, 2, 5};
  DropoutMask m = mask(0.4);
  m.length = 3;
  m.first_position = 1;
  m.tokens_before_gap = 2;
  m.gap = 2;
  const auto values = numbers<double>(1, 9 * kWidth);
  std::vector<double> dropped(values.size());
  drop_elements(values.data(), m, 9, kWidth, dropped.data(), Team(2));
  for (std::int64_t row = 0; row < 9; ++row) {
    const std::int64_t position = kPositions[static_cast<std::size_t>(row % 3)];
    for (std::int64_t j = 0; j < kWidth; ++j) {
      const auto i = static_cast<std::size_t>(row * kWidth + j);
      ASSERT_EQ(dropped[i], values[i] * factor_of(m, 6 + row / 3, 0, position, j));
    }
  }
}

TEST(Dropout, RowsAreCutWithoutAnEffect) {
  constexpr std::int64_t kRows = 21;  // three sequences of seven
  constexpr std::int64_t kWidth = 70;
  DropoutMask m = mask(0.4);
  const auto values = numbers<double>(1, kRows * kWidth);
  std::vector<double> whole(values.size());
  drop_elements(values.data(), m, kRows, kWidth, whole.data(), Team(2));
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t j = 0; j < kWidth; ++j) {
      const auto i = static_cast<std::size_t>(row * kWidth + j);
      ASSERT_EQ(whole[i], values[i] * factor_of(m, 6 + row / 7, 0, row % 7, j));
    }
  }
  std::vector<double> parts(values);
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 9}, {9, 1}, {10, 11}}) {
    m.first_row = first;
    double* const at = parts.data() + first * kWidth;
    drop_elements<double>(at, m, count, kWidth, at, Team(1));
  }
  EXPECT_EQ(parts, whole);
}

TEST(Dropout, ANormAddsTheBranchWithItsMask) {
  constexpr std::int64_t kRows = 14;
  constexpr std::int64_t kWidth = 67;
  auto residual = numbers<double>(1, kRows * kWidth);
  const auto branch = numbers<double>(2, kRows * kWidth);
  const auto bias = numbers<double>(3, kWidth);
  const std::vector<double> before = residual;
  NormForward n;
  n.residual = host(before);
  n.branch = host(branch);
  n.branch_bias = host(bias);
  n.rows = kRows;
  n.width = kWidth;
  n.residual_after = host(residual);
  n.dropout = mask(0.25);
  add_branch<double>(n, Team(2));
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t j = 0; j < kWidth; ++j) {
      const auto i = static_cast<std::size_t>(row * kWidth + j);
      const double f = factor_of(n.dropout, 6 + row / 7, 0, row % 7, j);
      ASSERT_EQ(residual[i], before[i] + f * (branch[i] + bias[static_cast<std::size_t>(j)]));
    }
  }
}

/// Dense attention in double, with dropout of its probabilities.
std::vector<double> dense_attention(const std::vector<double>& qkv, const AttentionShape& s, const DropoutMask& m) {
  const std::int64_t part = s.heads * s.head_width;
  std::vector<double> out(static_cast<std::size_t>(s.batch * s.length * part));
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const auto at = [&](std::int64_t t, std::int64_t which, std::int64_t d) {
        return qkv[static_cast<std::size_t>(((b * s.length + t) * 3 + which) * part + h * s.head_width + d)];
      };
      for (std::int64_t t = 0; t < s.length; ++t) {
        std::vector<double> weight;
        double sum = 0;
        for (std::int64_t u = 0; u <= t; ++u) {
          double score = 0;
          for (std::int64_t d = 0; d < s.head_width; ++d) score += at(t, 0, d) * at(u, 1, d);
          weight.push_back(std::exp(score / std::sqrt(static_cast<double>(s.head_width))));
          sum += weight.back();
        }
        for (std::int64_t u = 0; u <= t; ++u) {
          const double f =
              factor_of(m, m.first_sample + b, m.first_head + h, m.first_position + t, m.first_position + u);
          for (std::int64_t d = 0; d < s.head_width; ++d) {
            out[static_cast<std::size_t>((b * s.length + t) * part + h * s.head_width + d)] +=
                f * weight[static_cast<std::size_t>(u)] / sum * at(u, 2, d);
          }
        }
      }
    }
  }
  return out;
}

template <class T>
void expect_attention_with_dropout(const AttentionKernel& kernel, double bound) {
  ASSERT_TRUE(kernel.takes_dropout());
  for (const AttentionShape& shape : {AttentionShape{2, 7, 3, 4}, AttentionShape{1, 130, 2, 5}}) {
    DropoutMask m = mask(0.3, Purpose::kAttentionDropout);
    m.first_head = 2;
    m.first_position = 9;
    m.length = shape.length;
    const std::int64_t part = shape.heads * shape.head_width;
    const std::int64_t rows = shape.batch * shape.length;
    const auto qkv = numbers<T>(1, rows * 3 * part);
    const auto dout = numbers<T>(2, rows * part);
    const Team team(2);
    std::vector<T> statistics(kernel.statistics_elems(shape));
    std::vector<T> out(static_cast<std::size_t>(rows * part));
    std::vector<T> grad(qkv.size());
    std::vector<T> scratch(std::max(kernel.forward_scratch_elems(shape, 2), kernel.backward_scratch_elems(shape, 2)));
    kernel.forward({host(qkv), host(statistics), host(out), host(scratch), m}, shape, {&team, nullptr});
    kernel.backward({host(dout), host(qkv), host(out), host(statistics), host(grad), host(scratch), m}, shape,
                    {&team, nullptr});
    std::vector<double> at(qkv.begin(), qkv.end());
    const std::vector<double> want = dense_attention(at, shape, m);
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(out[i], want[i], bound);
    // Along a direction, so that every element counts.
    const auto direction = numbers<double>(3, rows * 3 * part);
    const auto inner = [&](double by) {
      for (std::size_t i = 0; i < at.size(); ++i) at[i] = static_cast<double>(qkv[i]) + by * direction[i];
      const std::vector<double> moved = dense_attention(at, shape, m);
      double sum = 0;
      for (std::size_t i = 0; i < moved.size(); ++i) sum += moved[i] * static_cast<double>(dout[i]);
      return sum;
    };
    constexpr double kStep = 1e-5;
    const double slope = (inner(kStep) - inner(-kStep)) / (2 * kStep);
    double got = 0;
    for (std::size_t i = 0; i < grad.size(); ++i) got += static_cast<double>(grad[i]) * direction[i];
    EXPECT_NEAR(got / slope, 1, sizeof(T) == 8 ? 1e-7 : 1e-4);
  }
}

TEST(Dropout, FlashAttentionIsTheDenseOneWithTheSameMask) {
  expect_attention_with_dropout<double>(*make_flash_attention(), 1e-13);
  expect_attention_with_dropout<float>(*make_flash_attention(), 1e-5);
}

TEST(Dropout, ReferenceAttentionIsTheDenseOneWithTheSameMask) {
  expect_attention_with_dropout<double>(*make_reference_attention(), 1e-13);
  expect_attention_with_dropout<float>(*make_reference_attention(), 1e-5);
}

constexpr DropoutConfig kDropout{0.2, 0.15, 0.1, 9};

Gpt2Config model(const DropoutConfig& dropout) {
  Gpt2Config config{2, 12, 3, 8, 31};
  config.dropout = dropout;
  return config;
}

/// The mean loss of a GPT-2 in double, from its tensors by name.
class PlainGpt2 {
 public:
  PlainGpt2(const Gpt2Config& config, const BatchShape& shape) : config_(config), shape_(shape) {}

  double loss(const Tensors& w, const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets) {
    const std::int64_t rows = shape_.rows();
    const std::int64_t width = config_.width;
    std::vector<double> x(static_cast<std::size_t>(rows * width));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t j = 0; j < width; ++j) {
        const double sum =
            w.at("wte.weight")[static_cast<std::size_t>(tokens[static_cast<std::size_t>(r)] * width + j)] +
            w.at("wpe.weight")[static_cast<std::size_t>(r % shape_.length * width + j)];
        x[static_cast<std::size_t>(r * width + j)] =
            sum * factor(Purpose::kEmbeddingDropout, config_.dropout.embedding, 0, r, j);
      }
    }
    for (int layer = 0; layer < config_.layers; ++layer) {
      const std::string h = "h." + std::to_string(layer) + ".";
      auto y = linear(norm(x, w.at(h + "ln_1.weight"), w.at(h + "ln_1.bias")), w, h + "attn.c_attn");
      DropoutMask m = mask_of(Purpose::kAttentionDropout, config_.dropout.attention, layer);
      y = dense_attention(y, {shape_.batch, shape_.length, config_.heads, width / config_.heads}, m);
      add(linear(y, w, h + "attn.c_proj"), 2 * layer, x);
      y = linear(norm(x, w.at(h + "ln_2.weight"), w.at(h + "ln_2.bias")), w, h + "mlp.c_fc");
      for (double& v : y) v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
      add(linear(y, w, h + "mlp.c_proj"), 2 * layer + 1, x);
    }
    x = norm(x, w.at("ln_f.weight"), w.at("ln_f.bias"));
    double loss = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      double target = 0;
      for (int token = 0; token < config_.vocabulary; ++token) {
        double logit = 0;
        for (std::int64_t j = 0; j < width; ++j) {
          logit += x[static_cast<std::size_t>(r * width + j)] *
                   w.at("wte.weight")[static_cast<std::size_t>(token * width + j)];
        }
        sum += std::exp(logit);
        if (token == targets[static_cast<std::size_t>(r)]) target = logit;
      }
      loss += std::log(sum) - target;
    }
    return loss / static_cast<double>(rows);
  }

 private:
  DropoutMask mask_of(Purpose purpose, double probability, int place) const {
    DropoutMask m;
    m.probability = probability;
    m.seed = config_.dropout.seed;
    m.purpose = purpose;
    m.step = shape_.step;
    m.place = place;
    m.first_sample = shape_.first_sample;
    return m;
  }
  double factor(Purpose purpose, double probability, int place, std::int64_t row, std::int64_t column) const {
    return factor_of(mask_of(purpose, probability, place), shape_.first_sample + row / shape_.length, 0,
                     row % shape_.length, column);
  }
  void add(const std::vector<double>& branch, int place, std::vector<double>& x) const {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      x[i] += branch[i] * factor(Purpose::kResidualDropout, config_.dropout.residual, place, at / config_.width,
                                 at % config_.width);
    }
  }
  std::vector<double> norm(const std::vector<double>& x, const std::vector<double>& gain,
                           const std::vector<double>& bias) const {
    std::vector<double> y(x.size());
    const auto width = static_cast<std::size_t>(config_.width);
    for (std::size_t r = 0; r < x.size() / width; ++r) {
      double mean = 0;
      for (std::size_t j = 0; j < width; ++j) mean += x[r * width + j] / static_cast<double>(width);
      double variance = 0;
      for (std::size_t j = 0; j < width; ++j) {
        variance += (x[r * width + j] - mean) * (x[r * width + j] - mean) / static_cast<double>(width);
      }
      for (std::size_t j = 0; j < width; ++j) {
        y[r * width + j] = (x[r * width + j] - mean) / std::sqrt(variance + 1e-5) * gain[j] + bias[j];
      }
    }
    return y;
  }
  static std::vector<double> linear(const std::vector<double>& x, const Tensors& w, const std::string& name) {
    const std::vector<double>& weight = w.at(name + ".weight");
    const std::vector<double>& bias = w.at(name + ".bias");
    const std::size_t outputs = bias.size();
    const std::size_t inputs = weight.size() / outputs;
    std::vector<double> y(x.size() / inputs * outputs);
    for (std::size_t r = 0; r < x.size() / inputs; ++r) {
      for (std::size_t o = 0; o < outputs; ++o) {
        double sum = bias[o];
        for (std::size_t i = 0; i < inputs; ++i) sum += x[r * inputs + i] * weight[i * outputs + o];
        y[r * outputs + o] = sum;
      }
    }
    return y;
  }

  Gpt2Config config_;
  BatchShape shape_;
};

TEST(Dropout, AModelIsThePlainOneWithTheSameMasks) {
  const Gpt2Config config = model(kDropout);
  const BatchShape shape{2, 7, 0, 3, 4};
  const auto tokens = formula_tokens(0, 14, config.vocabulary);
  const auto targets = formula_tokens(1, 14, config.vocabulary);
  Tensors values;
  Tensors gradients;
  double loss = 0;
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<double> of_test(config, group, 2);
    set_formula_weights(of_test, group);
    of_test.model().forward_backward(tokens, targets, shape, 1.0);
    loss = of_test.model().step_sums().losses;
    add_to_whole(of_test, group, &Parameter<double>::value, values);
    add_to_whole(of_test, group, &Parameter<double>::gradient, gradients);
  });
  PlainGpt2 plain(config, shape);
  EXPECT_NEAR(loss / plain.loss(values, tokens, targets), 1, 1e-12);
  // Along a direction of each tensor, so that no tensor hides another one.
  for (const auto& item : gradients) {
    const std::string& name = item.first;
    const std::vector<double>& gradient = item.second;
    Tensors moved = values;
    double slope = 0;
    const auto move = [&](double by) {
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        moved[name][i] = values[name][i] + by * mixed(7, i);
      }
      return plain.loss(moved, tokens, targets);
    };
    constexpr double kStep = 1e-5;
    slope = (move(kStep) - move(-kStep)) / (2 * kStep);
    double got = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) got += gradient[i] * mixed(7, i);
    EXPECT_NEAR(got, slope, 1e-7 * std::max(1.0, std::abs(slope))) << name;
    EXPECT_GT(std::abs(slope), 1e-6) << name;
  }
}

TEST(Dropout, AnEvaluationHasNone) {
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    std::vector<double> losses;
    const auto tokens = formula_tokens(0, 14, 31);
    for (const DropoutConfig& dropout : {DropoutConfig{}, kDropout}) {
      HostGpt2<double> of_test(model(dropout), group, 1);
      set_formula_weights(of_test, group);
      (void)of_test.model().forward_backward(tokens, tokens, {2, 7, 0, 1, 0}, 1.0);  // the pass before has dropout
      losses.push_back(of_test.evaluate(tokens, tokens, 2, 7));
    }
    EXPECT_EQ(losses[0], losses[1]);
  });
}

Training training() {
  Training run;
  run.config.dropout = kDropout;
  run.sequences = 2;
  return run;
}

class DropoutLayouts : public testing::TestWithParam<TrainingCase> {};

TEST_P(DropoutLayouts, TrainAsOneRankDoes) { expect_equal_to_one_rank<double>(GetParam().run, 1e-12); }

std::vector<TrainingCase> layouts() {
  std::vector<TrainingCase> cases;
  const auto add = [&](const char* name, const std::function<void(Training&)>& change) {
    Training run = training();
    change(run);
    cases.push_back({name, run});
  };
  add("tensor 2", [](Training& r) { r.tensor = 2; });
  add("tensor 3, uneven heads", [](Training& r) { r.tensor = 3; });
  add("data 2, accumulation", [](Training& r) {
    r.data = 2;
    r.micro_batches = 2;
  });
  add("pipeline 2", [](Training& r) {
    r.pipeline = 2;
    r.micro_batches = 3;
  });
  add("zero bubble", [](Training& r) {
    r.pipeline = 2;
    r.micro_batches = 4;
    r.kind = ScheduleKind::kZeroBubble;
  });
  add("ZeRO 1", [](Training& r) {
    r.data = 2;
    r.sharding = small_buckets(1);
  });
  add("ZeRO 2", [](Training& r) {
    r.data = 2;
    r.micro_batches = 2;
    r.sharding = small_buckets(2, ShardOptions::Reduce::kAfterEach);
  });
  add("ZeRO 3 with tensor 2", [](Training& r) {
    r.data = 2;
    r.tensor = 2;
    r.sharding = small_buckets(3);
  });
  add("attention alone, tensor 2", [](Training& r) {
    r.config.dropout = {0.3, 0, 0, 2};
    r.tensor = 2;
  });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Layouts, DropoutLayouts, testing::ValuesIn(layouts()));

TEST(Dropout, BlocksThatAreComputedAgainDrawTheSameMasks) {
  Training run = training();
  run.tensor = 2;
  const TrainingResult want = train<double>(run);
  for (const Recompute policy : {Recompute::kSelective, Recompute::kBlock}) {
    run.memory.recompute = {policy};
    expect_equal_bits(train<double>(run), want);
  }
  run.memory.place = {true, true};
  expect_equal_bits(train<double>(run), want);
  run.memory = {};
  run.config.dropout.seed = 10;
  EXPECT_NE(train<double>(run).steps.back().loss, want.steps.back().loss) << "the seed has an effect";
}

TEST(Dropout, ProbabilitiesOfOneAndMoreAreRefused) {
  comm::run_ranks(1, kTestTimeout, [](comm::Communicator& group) {
    EXPECT_THROW((HostGpt2<double>(model({0, 1, 0, 1}), group, 1)), ConfigError);
    EXPECT_THROW((HostGpt2<double>(model({-0.1, 0, 0, 1}), group, 1)), ConfigError);
  });
}

}  // namespace
}  // namespace droptest::models::dropout_test
