// SPDX-License-Identifier: Apache-2.0
#include "models/loss_scaler.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace droptest::models::loss_scaler_test {
namespace {

using Kind = LossScaleConfig::Kind;
using Step = LossScaler::Step;

std::vector<double> scales_after(LossScaler& scaler, const std::string& steps) {
  std::vector<double> scales;
  for (const char step : steps) {
    scaler.take(step == 'x' ? Step::kOverflow : Step::kFinite);
    scales.push_back(scaler.scale());
  }
  return scales;
}

// tests/vectors/grad_scaler.json: scripts/make_grad_scaler_vectors.py
TEST(LossScaler, HasTheScalesOfPyTorchsGradScaler) {
  std::ifstream file(std::string(DROPTEST_VECTORS) + "/grad_scaler.json");
  const nlohmann::json vectors = nlohmann::json::parse(file);
  ASSERT_EQ(vectors["steps"], 10000);
  for (const nlohmann::json& one : vectors["cases"]) {
    LossScaleConfig config{.kind = Kind::kDynamic, .minimum = 0};
    config.initial = one["initial"];
    config.growth = one["growth"];
    config.backoff = one["backoff"];
    config.interval = one["interval"];
    const auto overflows = one["overflows"].get<std::set<int>>();
    std::map<int, double> changes;
    for (const nlohmann::json& change : one["changes"]) changes[change[0]] = change[1];
    LossScaler scaler(config);
    double want = config.initial;
    for (int step = 1; step <= 10000; ++step) {
      scaler.take(overflows.contains(step) ? Step::kOverflow : Step::kFinite);
      if (changes.contains(step)) want = changes[step];
      ASSERT_EQ(scaler.scale(), want) << "step " << step << " of growth " << config.growth;
    }
    EXPECT_EQ(scaler.skipped(), overflows.size());
    EXPECT_GE(changes.size(), 4U);
  }
}

// Megatron-LM's rule: a growth resets the count of overflows, a good step does not.
TEST(LossScaler, HysteresisLetsOverflowsPassUntilTheNextGrowth) {
  LossScaler scaler({.kind = Kind::kDynamic, .initial = 64, .interval = 3, .hysteresis = 2});
  EXPECT_EQ(scales_after(scaler, "x.xx"), (std::vector<double>{64, 64, 32, 16}));
  EXPECT_EQ(scales_after(scaler, "...x"), (std::vector<double>{16, 16, 32, 32})) << "the growth fills it again";
  EXPECT_EQ(scales_after(scaler, "x"), std::vector<double>{16});
}

TEST(LossScaler, DoesNotFallBelowItsMinimumOrGrowBeyondFloats) {
  LossScaler low({.kind = Kind::kDynamic, .initial = 4, .minimum = 1.5});
  EXPECT_EQ(scales_after(low, "xxx"), (std::vector<double>{2, 1.5, 1.5}));
  LossScaler high({.kind = Kind::kDynamic, .initial = 0x1p126, .interval = 1});
  EXPECT_EQ(scales_after(high, "..."), (std::vector<double>{0x1p127, 0x1p127, 0x1p127}));
}

TEST(LossScaler, AStaticScaleCountsAndStays) {
  LossScaler scaler({.kind = Kind::kStatic, .initial = 1024});
  EXPECT_EQ(scales_after(scaler, "xx.x"), std::vector<double>(4, 1024));
  EXPECT_EQ(scaler.skipped(), 3U);
  const LossScaler off(LossScaleConfig{});
  EXPECT_FALSE(off.is_on());
  EXPECT_EQ(off.scale(), 1);
}

TEST(LossScaler, GivesUpAfterOverflowsInARow) {
  LossScaler scaler({.kind = Kind::kDynamic, .give_up_after = 3});
  scales_after(scaler, "xx.xx");
  EXPECT_FALSE(scaler.gives_up()) << "a good step begins the count again";
  scales_after(scaler, "x");
  EXPECT_TRUE(scaler.gives_up());
  LossScaler off(LossScaleConfig{});
  scales_after(off, std::string(100, 'x'));
  EXPECT_FALSE(off.gives_up());
}

/// Numbers by name, out of an object or into it.
class Numbers final : public StateVisitor {
 public:
  void number(std::string_view name, std::uint64_t& value) override {
    EXPECT_TRUE(name.starts_with(LossScaler::kStateNames)) << name;
    std::uint64_t& stored = values.try_emplace(std::string(name), value).first->second;
    value = stored;
  }
  void tensor(std::string_view, const comm::Tensor&, std::span<const TensorPiece>, Sharding) override {
    ADD_FAILURE() << "a loss scale has no tensors";
  }
  std::map<std::string, std::uint64_t> values;
};

TEST(LossScaler, GoesOnFromItsState) {
  const LossScaleConfig config{
      .kind = Kind::kDynamic, .initial = 3e7, .backoff = 0.7, .interval = 4, .hysteresis = 2, .give_up_after = 5};
  const std::string steps = "x..xx....xxx.....xxxxx";
  for (std::size_t cut = 0; cut <= steps.size(); ++cut) {
    LossScaler whole(config);
    scales_after(whole, steps.substr(0, cut));
    Numbers numbers;
    whole.visit_state(numbers);
    LossScaler restored(config);
    restored.visit_state(numbers);
    EXPECT_EQ(scales_after(restored, steps.substr(cut)), scales_after(whole, steps.substr(cut))) << cut;
    EXPECT_EQ(restored.skipped(), whole.skipped());
    EXPECT_EQ(restored.gives_up(), whole.gives_up());
  }
  Numbers none;
  LossScaler(LossScaleConfig{}).visit_state(none);
  EXPECT_TRUE(none.values.empty()) << "a run without a scale has checkpoints as before";
}

}  // namespace
}  // namespace droptest::models::loss_scaler_test
