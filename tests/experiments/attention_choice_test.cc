// SPDX-License-Identifier: Apache-2.0
// The attention kernel that a spec gets, and its effect on the spec's identity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/spec/kernels_in_use.h"
#include "experiments/spec/run_id.h"
#include "tests/comm/error_text.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::attention_choice_test {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> bf16_on_cuda(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"/device=cuda", "/training/precision=bfloat16"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::string attention_of(const std::vector<std::string>& overrides) {
  const ResolvedRun run = resolved(kTwoRanks, overrides);
  return kernels_json(run.spec, run.config).at("attention");
}

TEST(AttentionChoice, IsCudnnsForDenseAttentionOnTheDevicesNarrowTypes) {
  EXPECT_EQ(attention_of(bf16_on_cuda()), "cudnn");
  EXPECT_EQ(attention_of({"/device=cuda", "/training/precision=float16"}), "cudnn");
  EXPECT_EQ(attention_of(bf16_on_cuda({"/model/width=256", "/model/heads=2"})), "cudnn");
  EXPECT_EQ(attention_of(bf16_on_cuda({"/training/dropout={\"residual\": 0.1}"})), "cudnn");

  EXPECT_EQ(attention_of({"/training/precision=bfloat16"}), "flash") << "on the CPU";
  EXPECT_EQ(attention_of({"/device=cuda"}), "flash") << "in float32";
  EXPECT_EQ(attention_of(bf16_on_cuda({"/model/width=272", "/model/heads=2"})), "flash") << "heads of 136 columns";
  EXPECT_EQ(attention_of(bf16_on_cuda({"/model/width=24", "/model/heads=2"})), "flash") << "heads of 12 columns";
  EXPECT_EQ(attention_of(bf16_on_cuda({"/training/dropout={\"attention\": 0.1}"})), "flash");
  EXPECT_EQ(attention_of(bf16_on_cuda({"/parallel/sequence=2"})), "flash");
  EXPECT_EQ(attention_of(bf16_on_cuda({"/data/documents=true", "/data/end_of_text=10"})), "flash");
  EXPECT_EQ(attention_of(bf16_on_cuda({"/memory={\"attention_chunk\": 32}"})), "flash");
  EXPECT_EQ(attention_of(bf16_on_cuda({"/kernels={\"attention\": \"plain\"}"})), "plain");
}

TEST(AttentionChoice, TheDefaultIsTheSameRunNamedOrNot) {
  const ResolvedRun plain = resolved(kTwoRanks, bf16_on_cuda());
  const ResolvedRun named = resolved(kTwoRanks, bf16_on_cuda({"/kernels={\"attention\": \"cudnn\"}"}));
  EXPECT_FALSE(plain.spec.contains("kernels"));
  EXPECT_EQ(named.spec, plain.spec);
  EXPECT_EQ(named.run_id, plain.run_id);
  EXPECT_EQ(resolve(plain.spec, "again").run_id, plain.run_id);

  const ResolvedRun flash = resolved(kTwoRanks, bf16_on_cuda({"/kernels={\"attention\": \"flash\"}"}));
  EXPECT_EQ(flash.spec.at("kernels"), json({{"attention", "flash"}}));
  EXPECT_NE(flash.run_id, plain.run_id);
  EXPECT_EQ(kernels_json(flash.spec, flash.config).at("attention"), "flash");
  EXPECT_EQ(resolve(flash.spec, "again").run_id, flash.run_id);

  const ResolvedRun in_float = resolved(kTwoRanks, {"/device=cuda", "/kernels={\"attention\": \"flash\"}"});
  EXPECT_FALSE(in_float.spec.contains("kernels"));
  EXPECT_EQ(in_float.run_id, resolved(kTwoRanks, {"/device=cuda"}).run_id);
}

// Attention with state has kernels of its own. A spec may still name flash, the device's first kernel, which changes
// nothing there.
TEST(AttentionChoice, FlashMayBeNamedWhereAttentionHasState) {
  for (const std::vector<std::string>& layout : {std::vector<std::string>{"/parallel/sequence=2"},
                                                 {"/data/documents=true", "/data/end_of_text=10"},
                                                 {"/memory={\"attention_chunk\": 32}"}}) {
    const ResolvedRun plain = resolved(kTwoRanks, bf16_on_cuda(layout));
    std::vector<std::string> named = layout;
    named.emplace_back("/kernels={\"attention\": \"flash\"}");
    EXPECT_EQ(resolved(kTwoRanks, bf16_on_cuda(named)).spec, plain.spec) << layout[0];
    named.back() = "/kernels={\"attention\": \"plain\"}";
    EXPECT_THAT(config_error_of([&] { resolved(kTwoRanks, bf16_on_cuda(named)); }), HasSubstr("want it absent"));
  }
}

// A run of version 2 has flash's rounding, under the same spec.
TEST(AttentionChoice, HasNumericsOfItsOwn) {
  EXPECT_EQ(resolved(kTwoRanks, bf16_on_cuda()).spec.at("numerics_version"), 3);
  EXPECT_EQ(resolved(kTwoRanks, bf16_on_cuda({"/kernels={\"attention\": \"flash\"}"})).spec.at("numerics_version"), 1);
  EXPECT_EQ(resolved(kTwoRanks, {"/device=cuda"}).spec.at("numerics_version"), 1);
  // Two ranks have 2,001 outputs each.
  const std::string flash = "/kernels={\"attention\": \"flash\"}";
  EXPECT_EQ(resolved(kTwoRanks, bf16_on_cuda({flash, "/model/vocabulary=4002"})).spec.at("numerics_version"), 3);
  EXPECT_EQ(resolved(kTwoRanks, bf16_on_cuda({flash, "/model/vocabulary=4016"})).spec.at("numerics_version"), 1);
  EXPECT_EQ(resolved(kTwoRanks, {"/device=cuda", "/model/vocabulary=4002"}).spec.at("numerics_version"), 1);
  EXPECT_THAT(config_error_of([] { resolved(kTwoRanks, bf16_on_cuda({"/numerics_version=1"})); }),
              HasSubstr("got 1, but this droptest has version 3 for a spec with attention by cuDNN"));
}

// Other versions concern runs with losses; this one moves the lossless twin, too.
TEST(AttentionChoice, ATwinHasTheSameNumerics) {
  EXPECT_THAT(twin_omits(resolved(kTwoRanks).spec), Contains("/numerics_version"));
  EXPECT_THAT(twin_omits(resolved(kTwoRanks, bf16_on_cuda()).spec), Not(Contains("/numerics_version")));
}

TEST(AttentionChoice, ASpecThatCudnnDoesNotServeIsRefused) {
  const auto error_with = [](std::vector<std::string> overrides) {
    overrides.emplace_back("/kernels={\"attention\": \"cudnn\"}");
    return config_error_of([&] { resolved(kTwoRanks, overrides); });
  };
  EXPECT_THAT(error_with({"/device=cuda"}),
              HasSubstr(R"(s.json: /kernels/attention: got "cudnn" with /training/precision "float32")"));
  EXPECT_THAT(error_with(bf16_on_cuda({"/model/width=24", "/model/heads=2"})), HasSubstr("heads of 12 columns"));
  EXPECT_THAT(error_with(bf16_on_cuda({"/training/dropout=0.25"})), HasSubstr("/training/dropout of 0.25"));
  EXPECT_THAT(error_with(bf16_on_cuda({"/parallel/sequence=2"})), HasSubstr("want it absent"));
  EXPECT_THAT(error_with({}), HasSubstr("known kernels: flash, reference"));
}

}  // namespace
}  // namespace droptest::experiments::attention_choice_test
