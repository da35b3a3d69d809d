// SPDX-License-Identifier: Apache-2.0
// Evaluations token by token with cached keys and values, and the results of an evaluation in addition to its loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/formula_model.h"

namespace droptest::models::cached_attention_test {
namespace {

constexpr int kTokens = 11;

Gpt2Config tiny(AttentionOptions::Past past) {
  Gpt2Config config{2, 24, 4, 12, 29};
  config.attention.past = past;
  return config;
}

/// The sum over ranks of the logits behind the last of the tokens, which begin at a position.
std::vector<double> logits_behind(Gpt2& model, comm::Communicator& group, std::span<const std::int32_t> tokens,
                                  std::int64_t position) {
  std::vector<std::int32_t> targets(tokens.size(), kIgnoredTarget);
  targets.back() = 0;
  const BatchShape shape{1, static_cast<std::int64_t>(tokens.size()), position};
  (void)model.evaluate({tokens, targets, shape}, EvaluationDetail::kLogits);
  std::vector<double> logits = model.detail();
  group.all_reduce(std::span<double>(logits), comm::ReduceOp::kSum, {sim::TrafficClass::kControl, "logits", -1});
  return logits;
}

TEST(CachedAttention, PartsOfASequenceGiveTheLogitsOfTheWhole) {
  const auto tokens = formula_tokens(0, kTokens, 29);
  for (const int ranks : {1, 3}) {
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      HostGpt2<double> whole(tiny(AttentionOptions::Past::kForgotten), group, 2);
      HostGpt2<double> parts(tiny(AttentionOptions::Past::kCached), group, 2);
      set_formula_weights(whole, group);
      set_formula_weights(parts, group);
      for (int again = 0; again < 2; ++again) {  // a pass at position 0 forgets what was there
        std::size_t done = 0;
        for (const std::size_t count : {4U, 1U, 1U, 3U, 2U}) {
          const std::vector<double> got =
              logits_behind(parts.model(), group, std::span(tokens).subspan(done, count), static_cast<int>(done));
          done += count;
          const std::vector<double> want = logits_behind(whole.model(), group, std::span(tokens).first(done), 0);
          EXPECT_LE(relative_difference(got, want), 1e-12) << done;
        }
      }
    });
  }
}

TEST(CachedAttention, RefusesGapsAndOtherAttention) {
  const auto tokens = formula_tokens(0, kTokens, 29);
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<double> model(tiny(AttentionOptions::Past::kCached), group, 1);
    set_formula_weights(model, group);
    (void)logits_behind(model.model(), group, std::span(tokens).first(3), 0);
    EXPECT_THROW((void)logits_behind(model.model(), group, std::span(tokens).first(1), 4), CheckError);
    EXPECT_THROW((void)logits_behind(model.model(), group, std::span(tokens).first(1), 2), CheckError);
  });
  Gpt2Config documents = tiny(AttentionOptions::Past::kCached);
  documents.attention.within = AttentionOptions::Within::kDocument;
  EXPECT_THROW(validate(documents, 1), ConfigError);
}

TEST(Evaluation, MarginsSayWhichTargetsHaveTheLargestLogit) {
  const auto tokens = formula_tokens(0, kTokens, 29);
  for (const int ranks : {1, 3}) {
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      HostGpt2<double> model(tiny(AttentionOptions::Past::kForgotten), group, 1);
      set_formula_weights(model, group);
      // The likeliest token behind each one, from the logits; two targets are others, one is none.
      std::vector<std::int32_t> targets;
      for (std::size_t t = 0; t < kTokens; ++t) {
        const std::vector<double> logits = logits_behind(model.model(), group, std::span(tokens).first(t + 1), 0);
        targets.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
      }
      targets[2] = (targets[2] + 1) % 29;
      targets[7] = (targets[7] + 5) % 29;
      targets[4] = kIgnoredTarget;
      (void)model.model().evaluate({tokens, targets, {1, kTokens}}, EvaluationDetail::kMargins);
      std::vector<double> margins = model.model().detail();
      ASSERT_EQ(margins.size(), 2U * (kTokens - 1));
      group.all_reduce(std::span<double>(margins), comm::ReduceOp::kMax, {sim::TrafficClass::kControl, "margins", -1});
      std::vector<bool> hits;
      for (std::size_t i = 0; i < margins.size(); i += 2) hits.push_back(margins[i] == margins[i + 1]);
      EXPECT_THAT(hits, testing::ElementsAre(true, true, false, true, true, true, false, true, true, true));
      (void)model.model().evaluate({tokens, targets, {1, kTokens}});
      EXPECT_TRUE(model.model().detail().empty());
    });
  }
}

}  // namespace
}  // namespace droptest::models::cached_attention_test
