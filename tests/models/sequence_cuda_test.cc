// SPDX-License-Identifier: Apache-2.0
// Compares StatefulAttention on a device with the host's: within documents, dilated, and over sequence ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/device_tensor.h"
#include "comm/lossy/lossy_communicator.h"
#include "models/attention/device_attention.h"
#include "models/attention/device_sequence_attention.h"
#include "models/attention/stateful_attention.h"
#include "models/gpt2/sequence_cut.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "tests/models/device_pass.h"
#include "tests/models/host_gpt2.h"
#include "tests/models/planned_bytes.h"

namespace droptest::models::sequence_cuda_test {
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

/// The documents of two sequences: short ones in the first, one before padding in the second.
std::vector<std::int32_t> some_documents() {
  std::vector<std::int32_t> documents;
  for (int i = 0; i < kLength; ++i) documents.push_back(i / 4);
  for (int i = 0; i < kLength; ++i) documents.push_back(i < 6 ? 3 : -1);
  return documents;
}

/// A forward and a backward pass with gradients of the mean loss, within documents if the config says so. The
/// evaluation before has the same loss.
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

/// A pass of sequence ranks; returns the sums over them. Each rank has float operations from make_ops(group of only
/// this rank).
template <class MakeOps>
Pass pass_over_ranks(const Gpt2Config& config, const MicroBatch& batch, const std::optional<comm::LossyOptions>& losses,
                     const MakeOps& make_ops) {
  Pass pass;
  std::mutex mutex;
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
    model.forward({0, 0}, batch);
    model.backward(0, 1.0, static_cast<double>(batch.shape.rows()));
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
  DropoutConfig dropout;
  const auto expect_equal = [&](const SequenceLayout& layout, AttentionOptions::Within within,
                                const std::optional<comm::LossyOptions>& network) {
    Gpt2Config config{1, 20, 5, kLength, 31};
    config.attention.sequence = layout;
    config.attention.within = within;
    config.dropout = dropout;
    const auto tokens = formula_tokens(0, kBatch * kLength, config.vocabulary);
    const auto targets = formula_tokens(1, kBatch * kLength, config.vocabulary);
    const bool has_documents = within == AttentionOptions::Within::kDocument;
    const std::vector<std::int32_t> documents = has_documents ? some_documents() : std::vector<std::int32_t>();
    const MicroBatch batch{tokens, targets, {kBatch, kLength}, documents};
    const Pass want = pass_over_ranks(config, batch, network, host_ops);
    const Pass got = pass_over_ranks(config, batch, network, device_ops);
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
  dropout = {0.2, 0.15, 0.1, 9};
  expect_equal({}, AttentionOptions::Within::kDocument, none);
  expect_equal({{1, 2}, kZigzag}, AttentionOptions::Within::kSequence, none);  // a rank's tokens are in two places
  expect_equal({{2, 2}, kZigzag}, AttentionOptions::Within::kDocument, none);
  EXPECT_NE(expect_equal(ring, AttentionOptions::Within::kSequence, absent), of_absent) << "nothing was dropped";
}

// Segments of all tokens and of less than a rank's; dilations that divide no segment. Gradients of a branch's weights
// are exact or stopped.
TEST_F(AttentionOnDevice, DilatedOverSequenceRanksEqualsTheHostsWithEqualLosses) {
  const auto device_ops = [](comm::Communicator& alone) { return make_cuda_ops({}, alone); };
  const auto host_ops = [](comm::Communicator& alone) { return make_host_ops({}, alone); };
  Gpt2Config config{1, 20, 5, kLength, 31};
  config.attention.branches = {{2, 1}, {5, 3}, {9, 4}};
  const auto tokens = formula_tokens(0, kBatch * kLength, config.vocabulary);
  const auto targets = formula_tokens(1, kBatch * kLength, config.vocabulary);
  const std::vector<std::int32_t> documents = some_documents();
  for (const int ranks : {1, 2, 3}) {
    config.attention.sequence.factors.ring = ranks;
    for (const auto gradient : {BranchGradient::kExact, BranchGradient::kStopped}) {
      config.attention.gradient = gradient;
      std::vector<double> losses;
      for (const std::optional<comm::LossyOptions>& network : std::vector<std::optional<comm::LossyOptions>>{
               std::nullopt, losing(comm::Fill::kAbsent), losing(comm::Fill::kZero)}) {
        if (ranks == 1 && network) continue;
        for (const auto within : {AttentionOptions::Within::kSequence, AttentionOptions::Within::kDocument}) {
          SCOPED_TRACE(std::to_string(ranks) + " ranks, case " + std::to_string(losses.size()));
          config.attention.within = within;
          MicroBatch batch{tokens, targets, {kBatch, kLength}};
          if (within == AttentionOptions::Within::kDocument) batch.documents = documents;
          const Pass want = pass_over_ranks(config, batch, network, host_ops);
          const Pass got = pass_over_ranks(config, batch, network, device_ops);
          EXPECT_NEAR(got.loss, want.loss, 4e-6);
          worst_difference(got.gradients, want.gradients, 2e-5);
          losses.push_back(got.loss);
        }
      }
      config.dropout = {0.2, 0.15, 0.1, 9};
      const MicroBatch batch{tokens, targets, {kBatch, kLength}, documents};
      const Pass want = pass_over_ranks(config, batch, std::nullopt, host_ops);
      const Pass got = pass_over_ranks(config, batch, std::nullopt, device_ops);
      EXPECT_NEAR(got.loss, want.loss, 4e-6);
      worst_difference(got.gradients, want.gradients, 2e-5);
      config.dropout = {};
      if (ranks == 1) continue;
      EXPECT_NE(losses[0], losses[2]) << "nothing was lost";
      EXPECT_NE(losses[2], losses[4]);
    }
  }
}

// Three ranks have 1, 1 and none of 2 tokens.
TEST_F(AttentionOnDevice, TakesRanksWithoutATokenAndNarrowFloats) {
  const std::vector<DilatedBranch> stopped = {{2, 1}, {2, 2}};
  for (const auto& [factors, branches] :
       {std::pair(SequenceFactors{3, 1}, std::vector<DilatedBranch>()),
        std::pair(SequenceFactors{1, 3}, std::vector<DilatedBranch>()), std::pair(SequenceFactors{1, 3}, stopped)}) {
    Gpt2Config config{1, 12, 3, kLength, 31};
    config.attention.sequence.factors = factors;
    config.attention.branches = branches;
    config.attention.gradient = BranchGradient::kStopped;
    const auto tokens = formula_tokens(0, 2, config.vocabulary);
    Gpt2Config one = config;
    one.attention.sequence = {};
    const Pass want = device_pass(one, {.batch = 1, .length = 2}, [&](Gpt2& model, const auto&, const auto&) {
      model.forward_backward(tokens, tokens, {1, 2}, 1.0);
    });
    for (const ModelPrecision& precision : {ModelPrecision{}, kBf16Compute, kFp16Compute}) {
      const Pass got = pass_over_ranks(config, {tokens, tokens, {1, 2}}, std::nullopt, [&](comm::Communicator& alone) {
        return make_cuda_ops(options_of({.precision = precision}), alone);
      });
      const bool is_float = precision == ModelPrecision{};
      EXPECT_NEAR(got.loss, want.loss, is_float ? 2e-6 : 5e-3);
      worst_difference(got.gradients, want.gradients, is_float ? 2e-5 : 5e-2);
    }
  }
}

constexpr std::int64_t kStateHeads = 3;
constexpr std::int64_t kStateWidth = 8;

/// A block's tensors of one rank, by a formula.
struct Block {
  AttentionShape shape;
  std::vector<float> qkv, grad_output, output, grad_qkv;

  Block(const AttentionShape& s, float number) : shape(s) {
    const auto elems = static_cast<std::size_t>(s.batch * s.length * s.heads * s.head_width);
    for (std::size_t i = 0; i < 3 * elems; ++i) qkv.push_back(std::sin(static_cast<float>(7 * i + 1) * (1 + number)));
    for (std::size_t i = 0; i < elems; ++i) grad_output.push_back(std::cos(static_cast<float>(5 * i) * (2 + number)));
    output.resize(elems);
    grad_qkv.resize(3 * elems, 7);
  }
};

/// The tensor on the operations' processor.
class Placed {
 public:
  Placed(std::vector<float>& host, Ops& ops) : host_(host), stream_(ops.stream()) {
    if (stream_ == nullptr) return;
    device_ = comm::DeviceBuffer<float>(host.size(), "tensor of a test");
    comm::copy_to_device(std::span<const float>(host), device_.elems(), *stream_);
  }
  comm::Tensor tensor() {
    return stream_ == nullptr ? comm::Tensor(std::span(host_)) : comm::device_tensor(device_.elems(), *stream_);
  }
  void take_back() {
    if (stream_ == nullptr) return;
    comm::copy_to_host(comm::DeviceSpan<const float>(device_.elems()), std::span(host_), *stream_);
    stream_->synchronize();
  }

 private:
  std::vector<float>& host_;
  comm::Stream* stream_;
  comm::DeviceBuffer<float> device_;
};

/// Two blocks and two micro-batches with documents of their own are between their passes at once; after each forward
/// pass comes an evaluation of others. Returns outputs and gradients.
std::vector<std::vector<float>> passes_in_flight(StatefulAttention& attention, SequenceCut& cut, Ops& ops) {
  const auto sequences_of = [&cut](int number) {
    std::vector<std::int32_t> documents;
    for (int i = 0; i < kBatch * kLength; ++i) documents.push_back(i % kLength / (2 + number));
    const std::vector<std::int32_t> tokens(documents.size());
    return cut.sequences({tokens, tokens, {kBatch, kLength}, documents});
  };
  const auto forward = [&](const AttentionPlace& at, const Sequences& sequences, Block& block) {
    Placed qkv(block.qkv, ops);
    Placed output(block.output, ops);
    attention.forward(at, sequences, block.shape, qkv.tensor(), output.tensor());
    output.take_back();
  };
  const AttentionShape shape{kBatch, cut.shape({kBatch, kLength}).length, kStateHeads, kStateWidth};
  const std::vector<AttentionPlace> places = {{0, 0}, {1, 0}, {0, 1}, {1, 1}};
  std::vector<Sequences> sequences;
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) {
    const AttentionPlace& at = places[static_cast<std::size_t>(i)];
    forward(at, sequences.emplace_back(sequences_of(at.slot)), blocks.emplace_back(shape, static_cast<float>(i)));
    Block evaluated(shape, 9.F);
    forward({at.layer, AttentionPlace::kEvaluation}, sequences_of(5), evaluated);
  }
  std::vector<std::vector<float>> results;
  for (const std::size_t i : {3U, 2U, 0U, 1U}) {
    Block& block = blocks[i];
    Placed output(block.output, ops);
    Placed grad_output(block.grad_output, ops);
    Placed grad_qkv(block.grad_qkv, ops);
    attention.backward(places[i], sequences[i], shape, output.tensor(), grad_output.tensor(), grad_qkv.tensor());
    grad_qkv.take_back();
    results.push_back(block.output);
    results.push_back(block.grad_qkv);
  }
  return results;
}

/// The bytes by which the buffers for pieces may be smaller than planned on a device: one of two buffers may only have
/// had the shorter last piece of a tensor.
std::uint64_t shorter_passages(const AttentionOptions& options, KernelDevice device) {
  if (options.chunk_tokens == 0 || options.is_whole() || device == KernelDevice::kHost) return 0;
  const SequenceParts parts = options.sequence.parts(kLength);
  const std::int64_t tokens = std::min(options.chunk_tokens, parts.length_of(parts.longest_rank()));
  return KeyedStorage::kMostBuffers / 2 * sizeof(float) *
         static_cast<std::uint64_t>(kBatch * tokens * kStateHeads * kStateWidth);
}

TEST_F(AttentionOnDevice, HasAStateOfEachBlockAndSlotAndOfEvaluations) {
  constexpr auto kStopped = BranchGradient::kStopped;
  constexpr auto kDocument = AttentionOptions::Within::kDocument;
  const auto in_chunks_of = [](std::int64_t tokens, const SequenceFactors& factors = {},
                               const std::vector<DilatedBranch>& branches = {}) {
    AttentionOptions options{{factors}, branches, kStopped, kDocument};
    options.chunk_tokens = tokens;
    return options;
  };
  for (const AttentionOptions& options :
       {in_chunks_of(1), in_chunks_of(4), in_chunks_of(64), in_chunks_of(1, {1, 2}), in_chunks_of(3, {3, 1}),
        in_chunks_of(64, {1, 3}), in_chunks_of(2, {}, kBranches), in_chunks_of(4, {1, 2}, kBranches),
        AttentionOptions{{}, {}, kStopped, kDocument}, AttentionOptions{{{1, 2}}, {}, kStopped, kDocument},
        AttentionOptions{{{3, 1}}, {}, kStopped, kDocument}, AttentionOptions{{}, kBranches, kStopped, kDocument},
        AttentionOptions{{{1, 2}}, kBranches, kStopped, kDocument}}) {
    comm::run_ranks(options.sequence.ranks(), kTestTimeout, [&](comm::Communicator& group) {
      const std::unique_ptr<comm::Communicator> alone = group.split(group.rank(), 0);
      SequenceParallel ranks;
      if (options.sequence.ranks() > 1) ranks.group = &group;
      SequenceCut cut(options.sequence, ranks);
      const auto results_of = [&](Ops& ops, KernelDevice device) {
        const std::unique_ptr<StatefulAttention> attention =
            make_stateful_attention(options, ranks, 0, kStateHeads, ops);
        SCOPED_TRACE(testing::Message() << (device == KernelDevice::kCuda ? "cuda" : "host") << ", chunks of "
                                        << options.chunk_tokens << " tokens, ring of " << options.sequence.factors.ring
                                        << ", " << options.sequence.ranks() << " ranks, rank " << group.rank() << ", "
                                        << options.branches.size() << " branches");
        EXPECT_EQ(attention->bytes(), 0U) << "before any pass";
        std::vector<std::vector<float>> results = passes_in_flight(*attention, cut, ops);
        const StatefulAttentionUse both =
            stateful_attention_use(options, group.rank(), {kBatch, kLength, kStateHeads, kStateWidth}, 4, ops.form());
        const std::uint64_t use = both.memory;
        const std::uint64_t all = 4 * 3 * kBatch * kLength * kStateHeads * kStateWidth * sizeof(float);
        if (options.chunk_tokens == 0 || options.is_whole()) {
          EXPECT_EQ(both.stored, options.chunk_tokens > 0 ? all : 0);
        } else {
          EXPECT_GE(both.stored, all / static_cast<std::uint64_t>(options.sequence.ranks()) / 2);
        }
        EXPECT_LE(attention->bytes(), use);
        EXPECT_GE(attention->bytes() + shorter_passages(options, device), use);
        return results;
      };
      const auto want = results_of(*make_host_ops({}, *alone), KernelDevice::kHost);
      const auto got = results_of(*make_cuda_ops({}, *alone), KernelDevice::kCuda);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_THAT(got[i], testing::Pointwise(testing::FloatNear(1e-5F), want[i])) << "tensor " << i;
      }
    });
  }
}

TEST_F(AttentionOnDevice, OverSequenceRanksRefusesOtherShapesAndParts) {
  comm::run_ranks(2, kTestTimeout, [&](comm::Communicator& group) {
    comm::Stream stream;
    DeviceSequenceAttention<float> attention(&group, {1, 2}, kStateHeads);
    DeviceSavedAttention<float> saved;
    const auto view = [](std::int64_t tokens) {
      return DeviceHeadView<float>{{}, {kBatch, tokens, kStateHeads, kStateWidth}};
    };
    const auto error_of = [&](const SequenceParts& parts, std::int64_t keys) {
      try {
        const std::int64_t own = parts.length_of(group.rank());
        attention.forward({parts, {Causality::kCausal, parts.length()}}, view(own), view(keys), view(own), view(own),
                          saved, stream);
        return std::string("no error");
      } catch (const ConfigError& error) {
        return std::string(error.what());
      }
    };
    EXPECT_THAT(error_of(SequenceParts::even(10, 2), 6), HasSubstr("keys: axis 1 (tokens): got 6, want 5"));
    EXPECT_EQ(error_of(SequenceParts::even(15, 3), 5), "sequence: got parts of 3 ranks, want 2");
    try {
      const SequenceParts parts = SequenceParts::even(10, 2);
      attention.backward({parts, {}}, view(5), saved, {view(5), view(4), view(5)}, stream);
      FAIL() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("gradient of keys: axis 1 (tokens): got 4, want 5"));
    }
  });
}

TEST_F(AttentionOnDevice, TakesTheMemoryOfItsPlan) {
  Gpt2Config chunks = config_of(AttentionOptions::Within::kDocument);
  chunks.attention.chunk_tokens = 4;
  for (const Gpt2Config& config : {chunks, config_of(AttentionOptions::Within::kDocument),
                                   config_of(AttentionOptions::Within::kSequence, kBranches)}) {
    comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
      const CudaOpsOptions options = options_of({.precision = kBf16Compute});
      const std::unique_ptr<Gpt2> model = formula_device_model(config, group, options);
      model->zero_gradients();
      take_pass(*model, formula_tokens(0, kBatch * kLength, config.vocabulary),
                formula_tokens(1, kBatch * kLength, config.vocabulary), 1e-2);
      const StatefulAttentionUse attention =
          stateful_attention_use(config.attention, 0, {kBatch, kLength, 3, 8}, 2, *cuda_ops_form(options, 1));
      EXPECT_EQ(model->memory_bytes(),
                attention.memory + planned_bytes(config, 1, 0, *cuda_ops_form(options, 1), {kBatch, kLength}));
    });
  }
}

// Lengths of 9: chunks that divide it, that do not, and one that is longer.
TEST_F(AttentionOnDevice, InChunksEqualsAttentionInMemory) {
  SlotOptions again;
  again.recompute = {Recompute::kBlock, Recompute::kSelective};
  for (const auto within : {AttentionOptions::Within::kSequence, AttentionOptions::Within::kDocument}) {
    for (const double dropout : {0.0, 0.2}) {
      Gpt2Config config = config_of(within);
      config.dropout = {dropout, dropout, dropout, 9};
      const auto one_step = [&](Gpt2& model, const auto& tokens, const auto& targets) {
        std::vector<std::int32_t> documents;
        if (within == AttentionOptions::Within::kDocument) documents = some_documents();
        const MicroBatch batch{tokens, targets, {kBatch, kLength}, documents};
        model.evaluate(batch);
        model.forward({0, 0}, batch);
        model.backward(0, 1.0);
      };
      const auto device_step = [&](const Gpt2Config& of, const ModelPrecision& precision, int ranks,
                                   const SlotOptions& slots) {
        return device_pass(
            of, {.precision = precision, .ranks = ranks, .batch = kBatch, .length = kLength, .slots = slots}, one_step);
      };
      const Pass in_memory = device_step(config, {}, 1, {});
      for (const std::int64_t chunk : {1, 4, 9, 64}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(within)) + ", chunks of " + std::to_string(chunk));
        config.attention.chunk_tokens = chunk;
        for (const int ranks : {1, 2}) {
          const Pass chunked = device_step(config, {}, ranks, ranks == 1 ? SlotOptions{} : again);
          EXPECT_NEAR(chunked.loss, in_memory.loss, 2e-6);
          worst_difference(chunked.gradients, in_memory.gradients, 1e-5);
        }
        if (chunk != 4) continue;
        for (const ModelPrecision& precision : {kBf16Compute, kFp16Compute}) {
          const Pass narrow = device_step(config, precision, 1, {});
          EXPECT_NEAR(narrow.loss, in_memory.loss, 5e-3);
          worst_difference(narrow.gradients, in_memory.gradients, 5e-2);
        }
      }
      config.attention.chunk_tokens = 0;
    }
  }
}

}  // namespace
}  // namespace droptest::models::sequence_cuda_test
