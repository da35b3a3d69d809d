// SPDX-License-Identifier: Apache-2.0
// Attention within documents and dilated attention on a device against the host's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "tests/models/device_pass.h"
#include "tests/models/host_gpt2.h"

namespace droptest::models {
namespace {

using AttentionOnDevice = OnDevice;
using testing::HasSubstr;

constexpr int kBatch = 2;
constexpr int kLength = 9;

/// Heads of 8, on ranks with unequal numbers of them; two blocks.
Gpt2Config config_of(AttentionOptions::Within within, std::vector<DilatedBranch> branches = {}) {
  Gpt2Config config{2, 24, 3, kLength, 31};
  config.attention.within = within;
  config.attention.branches = std::move(branches);
  return config;
}
const std::vector<DilatedBranch> kBranches = {{4, 1}, {7, 3}};

/// Of two sequences: short ones, and one before padding.
std::vector<std::int32_t> some_documents() {
  std::vector<std::int32_t> documents;
  for (int i = 0; i < kLength; ++i) documents.push_back(i / 4);
  for (int i = 0; i < kLength; ++i) documents.push_back(i < 6 ? 3 : -1);
  return documents;
}

/// A forward and a backward pass with gradients of the mean loss, within documents where the config says so; the
/// evaluation before is of the same loss.
template <class Model>
void take_pass(Model& model, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
               double tolerance) {
  std::vector<std::int32_t> documents;
  if (model.config().attention.within == AttentionOptions::Within::kDocument) documents = some_documents();
  const MicroBatch batch{tokens, targets, {kBatch, kLength}, documents};
  const double evaluated = model.evaluate(batch);
  model.forward({0, 0}, batch);
  model.backward(0, 1.0);
  EXPECT_NEAR(model.step_sums().losses, evaluated, tolerance);
}

Pass host_pass(const Gpt2Config& config) {
  Pass pass;
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<double> model(config, group, 1);
    set_formula_weights<double>(config, model.parameters(), group);
    model.model().upload_values();
    model.zero_gradients();
    take_pass(model.model(), formula_tokens(0, kBatch * kLength, config.vocabulary),
              formula_tokens(1, kBatch * kLength, config.vocabulary), 1e-12);
    pass.loss = model.model().step_sums().losses;
    add_to_whole(model, group, &Parameter<double>::gradient, pass.gradients);
  });
  return pass;
}

Pass device_pass_of(const Gpt2Config& config, const ModelPrecision& precision, int ranks, const SlotOptions& slots) {
  const DeviceRun run{.precision = precision, .ranks = ranks, .batch = kBatch, .length = kLength, .slots = slots};
  return device_pass(config, run, [](Gpt2& model, const auto& tokens, const auto& targets) {
    take_pass(model, tokens, targets, 1e-5);
  });
}

TEST_F(AttentionOnDevice, EqualsTheHosts) {
  SlotOptions again;
  again.recompute = {Recompute::kBlock, Recompute::kSelective};
  for (const auto within : {AttentionOptions::Within::kSequence, AttentionOptions::Within::kDocument}) {
    for (const std::vector<DilatedBranch>& branches : {std::vector<DilatedBranch>(), kBranches}) {
      if (within == AttentionOptions::Within::kSequence && branches.empty()) continue;  // has no state
      const Gpt2Config config = config_of(within, branches);
      const Pass host = host_pass(config);
      SCOPED_TRACE(std::to_string(static_cast<int>(within)) + " " + std::to_string(branches.size()));
      for (const int ranks : {1, 2}) {
        if (ranks == 2 && branches.empty()) continue;
        const Pass device = device_pass_of(config, {}, ranks, ranks == 1 ? SlotOptions{} : again);
        EXPECT_NEAR(device.loss, host.loss, 2e-6);
        worst_difference(device.gradients, host.gradients, 1e-5);
      }
      if (within == AttentionOptions::Within::kSequence) continue;
      for (const ModelPrecision& precision : {kBf16Compute, kFp16Compute}) {
        const Pass narrow = device_pass_of(config, precision, 1, {});
        EXPECT_NEAR(narrow.loss, host.loss, 5e-3);
        const double worst = worst_difference(narrow.gradients, host.gradients, 5e-2);
        EXPECT_GT(worst, 1e-5);  // or nothing was rounded
      }
    }
  }
}

/// A pass of sequence ranks: the sums over them. Each has float operations by make_ops(group of this rank alone).
template <class MakeOps>
Pass pass_over_ranks(const Gpt2Config& config, const std::optional<comm::LossyOptions>& losses,
                     const MakeOps& make_ops) {
  Pass pass;
  std::mutex mutex;
  const auto tokens = formula_tokens(0, kBatch * kLength, config.vocabulary);
  const auto targets = formula_tokens(1, kBatch * kLength, config.vocabulary);
  std::vector<std::int32_t> documents;
  if (config.attention.within == AttentionOptions::Within::kDocument) documents = some_documents();
  comm::run_ranks(config.attention.sequence.ranks(), kTestTimeout, [&](comm::Communicator& plain) {
    std::optional<comm::LossyCommunicator> lossy;
    if (losses) lossy.emplace(plain, *losses);
    comm::Communicator& group = lossy ? static_cast<comm::Communicator&>(*lossy) : plain;
    const std::unique_ptr<comm::Communicator> alone = group.split(group.rank(), 0);
    ModelRanks ranks;
    ranks.sequence = {&group, 1};
    Gpt2 model(config, make_ops(*alone), {}, {}, ranks);
    set_formula_weights<float>(config, model.parameters<float>(), *alone);
    model.upload_values();
    model.zero_gradients();
    group.begin_step(1);
    model.forward({0, 0}, {tokens, targets, {kBatch, kLength}, documents});
    model.backward(0, 1.0, kBatch * kLength);
    const double loss = model.step_sums().losses;
    model.download(Gpt2::Fields::kValuesAndGradients);
    const std::lock_guard lock(mutex);
    pass.loss += loss;
    for (const Parameter<float>& parameter : model.parameters<float>()) {
      std::vector<double>& sum = pass.gradients[parameter.name];
      sum.resize(parameter.gradient.size());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(parameter.gradient[i]);
    }
  });
  return pass;
}

comm::LossyOptions losing(comm::Fill fill) {
  comm::LossyOptions options;
  for (const sim::TrafficClass of : {sim::TrafficClass::kSequenceForward, sim::TrafficClass::kSequenceBackward}) {
    comm::ClassNetwork& network = options.network.of(of).emplace();
    network.payload_bytes = 32;
    network.gather.loss = std::make_shared<sim::Bernoulli>(0.1);
    if (of == sim::TrafficClass::kSequenceForward) network.gather.fill = fill;
  }
  return options;
}

// Sequences of 9 tokens, 5 heads: no number of ranks divides both.
TEST_F(AttentionOnDevice, OverSequenceRanksEqualsTheHostsWithEqualLosses) {
  using enum SequenceLayout::Order;
  const auto device_ops = [](comm::Communicator& alone) { return make_cuda_ops({}, alone); };
  const auto host_ops = [](comm::Communicator& alone) { return make_host_ops({}, alone); };
  const std::optional<comm::LossyOptions> none;
  const std::optional<comm::LossyOptions> absent = losing(comm::Fill::kAbsent);
  const auto expect_equal = [&](const SequenceLayout& layout, AttentionOptions::Within within,
                                const std::optional<comm::LossyOptions>& network) {
    Gpt2Config config{1, 20, 5, kLength, 31};
    config.attention.sequence = layout;
    config.attention.within = within;
    const Pass want = pass_over_ranks(config, network, host_ops);
    const Pass got = pass_over_ranks(config, network, device_ops);
    EXPECT_NEAR(got.loss, want.loss, 4e-6);
    worst_difference(got.gradients, want.gradients, 2e-5);
    return got.loss;
  };
  expect_equal({{2, 2}, kZigzag}, AttentionOptions::Within::kDocument, none);
  expect_equal({{3, 1}}, AttentionOptions::Within::kSequence, absent);
  const SequenceLayout ring{{1, 3}};
  const double lossless = expect_equal(ring, AttentionOptions::Within::kSequence, none);
  const double of_absent = expect_equal(ring, AttentionOptions::Within::kSequence, absent);
  EXPECT_NE(of_absent, lossless) << "nothing was lost";
  EXPECT_NE(of_absent, expect_equal(ring, AttentionOptions::Within::kSequence, losing(comm::Fill::kZero)));
}

// Of 2 tokens, 3 ranks have 1, 1 and none.
TEST_F(AttentionOnDevice, TakesRanksWithoutATokenAndNarrowFloats) {
  for (const SequenceFactors& factors : {SequenceFactors{3, 1}, SequenceFactors{1, 3}}) {
    Gpt2Config config{1, 12, 3, kLength, 31};
    config.attention.sequence.factors = factors;
    const auto tokens = formula_tokens(0, 2, config.vocabulary);
    for (const ModelPrecision& precision : {ModelPrecision{}, kBf16Compute, kFp16Compute}) {
      double losses = 0;
      std::mutex mutex;
      comm::run_ranks(3, kTestTimeout, [&](comm::Communicator& group) {
        const std::unique_ptr<comm::Communicator> alone = group.split(group.rank(), 0);
        ModelRanks ranks;
        ranks.sequence = {&group, 1};
        Gpt2 model(config, make_cuda_ops(options_of({.precision = precision}), *alone), {}, {}, ranks);
        set_formula_weights<float>(config, model.parameters<float>(), *alone);
        model.upload_values();
        model.zero_gradients();
        model.forward({0, 0}, {tokens, tokens, {1, 2}});
        model.backward(0, 1.0, 2);
        const double loss = model.step_sums().losses;
        const std::lock_guard lock(mutex);
        losses += loss;
      });
      Gpt2Config one = config;
      one.attention.sequence = {};
      const Pass want = device_pass(one, {.batch = 1, .length = 2}, [&](Gpt2& model, const auto&, const auto&) {
        model.forward_backward(tokens, tokens, {1, 2}, 1.0);
      });
      EXPECT_NEAR(losses, want.loss, precision == ModelPrecision{} ? 2e-6 : 5e-3);
    }
  }
}

TEST_F(AttentionOnDevice, TakesTheMemoryOfItsFormula) {
  for (const Gpt2Config& config :
       {config_of(AttentionOptions::Within::kDocument), config_of(AttentionOptions::Within::kSequence, kBranches)}) {
    comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
      const CudaOpsOptions options = options_of({.precision = kBf16Compute});
      const std::unique_ptr<Gpt2> model = formula_device_model(config, group, options);
      model->zero_gradients();
      take_pass(*model, formula_tokens(0, kBatch * kLength, config.vocabulary),
                formula_tokens(1, kBatch * kLength, config.vocabulary), 1e-2);
      const StatefulAttentionUse attention = stateful_attention_use(
          config.attention, 0, {kBatch, kLength, 3, 8}, comm::ElementType::kBfloat16, 2 + 1, {KernelDevice::kCuda});
      EXPECT_EQ(model->memory_bytes(),
                attention.memory + Gpt2::planned_bytes(config, 1, 0, *cuda_ops_form(options, 1), {kBatch, kLength}));
    });
  }
}

TEST_F(AttentionOnDevice, RefusesWhatTheHostAloneComputes) {
  Gpt2Config stopped = config_of(AttentionOptions::Within::kSequence, kBranches);
  stopped.attention.gradient = BranchGradient::kStopped;
  Gpt2Config chunks = config_of(AttentionOptions::Within::kDocument);
  chunks.attention.chunk_tokens = 4;
  Gpt2Config over_ranks = config_of(AttentionOptions::Within::kSequence, kBranches);
  over_ranks.attention.sequence.factors.ring = 2;
  comm::run_ranks(2, kTestTimeout, [&](comm::Communicator& group) {
    const std::unique_ptr<comm::Communicator> alone = group.split(group.rank(), 0);
    ModelRanks ranks;
    ranks.sequence = {&group, 1};
    EXPECT_THROW(Gpt2(over_ranks, make_cuda_ops({}, *alone), {}, {}, ranks), ConfigError);
  });
  const std::vector<std::pair<Gpt2Config, const char*>> cases = {
      {stopped, "got dilated attention with a stopped gradient, want the CPU"},
      {chunks, "got attention in chunks, want the CPU"}};
  for (const auto& item : cases) {
    comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
      try {
        const Gpt2 model(item.first, make_cuda_ops({}, group));
        FAIL() << "no error";
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), HasSubstr(item.second));
      }
    });
  }
}

}  // namespace
}  // namespace droptest::models
