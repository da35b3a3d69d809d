// SPDX-License-Identifier: Apache-2.0
// StatefulAttention of a block, for one list of layouts, documents, chunks, dropout and losses, on every
// implementation. It is compared with dense attention, with finite differences, and between implementations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "models/attention/stateful_attention.h"
#include "models/gpt2/sequence_cut.h"
#include "sim/loss/bernoulli.h"
#include "tests/models/attention/branch_visits.h"
#include "tests/models/attention/dense_attention.h"
#include "tests/models/dropout_draws.h"
#include "tests/models/every_implementation.h"
#include "tests/models/ops_bench.h"

namespace droptest::models::stateful_attention_test {
namespace {

/// No number of ranks divides the tokens and the heads.
constexpr HeadShape kShape{2, 11, 5, 4};
const std::vector<DilatedBranch> kBranches = {{4, 1}, {7, 3}, {11, 2}};

struct Case {
  AttentionOptions options;
  double p_dropout;
  /// The fill of sequence_forward, which then loses packets; nullopt: nothing is lost. With loses_gradients,
  /// sequence_backward loses packets, too.
  std::optional<comm::Fill> fill;
  bool loses_gradients = false;

  bool has_documents() const { return options.within == AttentionOptions::Within::kDocument; }
  std::string text() const {
    const AttentionOptions& o = options;
    return "ulysses " + std::to_string(o.sequence.factors.ulysses) + ", ring " +
           std::to_string(o.sequence.factors.ring) + ", branches " + std::to_string(o.branches.size()) +
           (o.gradient == BranchGradient::kStopped ? " stopped" : "") + (has_documents() ? ", documents" : "") +
           ", chunks " + std::to_string(o.chunk_tokens) + ", dropout " + std::to_string(p_dropout) +
           (fill ? ", fill " + std::string(comm::fill_entry(*fill).name) : "");
  }
};

std::vector<AttentionOptions> layouts() {
  using enum SequenceLayout::Order;
  std::vector<AttentionOptions> all;
  for (const SequenceLayout& layout : {SequenceLayout{}, SequenceLayout{{3, 1}}, SequenceLayout{{1, 2}, kZigzag},
                                       SequenceLayout{{1, 3}}, SequenceLayout{{2, 2}, kZigzag}}) {
    all.push_back({layout});
  }
  for (const int ranks : {1, 3}) {
    all.push_back({{{1, ranks}}, kBranches});
    all.push_back({{{1, ranks}}, kBranches, BranchGradient::kStopped});
  }
  return all;
}

using Fills = std::vector<std::optional<comm::Fill>>;
/// A fill of nullopt means no loss.
std::vector<Case> cases_of(const Fills& fills, const std::vector<double>& dropouts) {
  std::vector<Case> all;
  for (const AttentionOptions& layout : layouts()) {
    for (const auto within : {AttentionOptions::Within::kSequence, AttentionOptions::Within::kDocument}) {
      for (const std::int64_t chunk_tokens : {0, 3}) {
        for (const double p_dropout : dropouts) {
          for (const std::optional<comm::Fill> fill : fills) {
            AttentionOptions options = layout;
            options.within = within;
            options.chunk_tokens = chunk_tokens;
            if (options.is_stateful() && (!fill || options.sequence.ranks() > 1)) {
              all.push_back({std::move(options), p_dropout, fill});
            }
          }
        }
      }
    }
  }
  return all;
}

struct Inputs {
  WholeTensor q = WholeTensor(kShape, 1), k = WholeTensor(kShape, 2), v = WholeTensor(kShape, 3);
  WholeTensor grad_output = WholeTensor(kShape, 4);

  /// Queries, keys and values all go along kDirection.
  Inputs moved(double by) const {
    Inputs inputs = *this;
    for (WholeTensor* tensor : {&inputs.q, &inputs.k, &inputs.v}) {
      for (std::size_t i = 0; i < tensor->elems.size(); ++i) tensor->elems[i] += by * formula_number(kDirection, i);
    }
    return inputs;
  }
  /// The inputs of an evaluation.
  Inputs others() const {
    Inputs inputs = *this;
    std::swap(inputs.q, inputs.k);
    std::swap(inputs.q, inputs.v);
    return inputs;
  }
  static constexpr std::uint64_t kDirection = 5;
};

/// Elements of the ranks' tokens: queries, keys and values side by side, as qkv has them.
Numbers packed(const WholeTensor& q, const WholeTensor& k, const WholeTensor& v,
               const std::vector<std::int64_t>& positions) {
  const auto row = static_cast<std::size_t>(kShape.heads * kShape.width);
  std::vector<Numbers> parts;
  for (const WholeTensor* tensor : {&q, &k, &v}) {
    parts.push_back(tensor->part<double>(positions, 0, kShape.heads, TokenLayout::kBatchFirst));
  }
  Numbers all;
  for (std::size_t first = 0; first < parts[0].size(); first += row) {
    for (const Numbers& part : parts) all.insert(all.end(), part.begin() + first, part.begin() + first + row);
  }
  return all;
}

Numbers packed(const Inputs& inputs, const std::vector<std::int64_t>& positions) {
  return packed(inputs.q, inputs.k, inputs.v, positions);
}

struct RankResult {
  std::vector<std::int64_t> positions;
  Numbers output, evaluated, grad_qkv;
};

const TestMask& mask_of(const Case& of) {
  static const TestMask kCausal({MaskKind::kCausal}, kShape.batch, kShape.tokens);
  static const TestMask kWithin({MaskKind::kCausal, MaskKind::kDocuments}, kShape.batch, kShape.tokens);
  return of.has_documents() ? kWithin : kCausal;
}

/// Packets have the same number of elements for all types.
comm::LossyOptions losing(const Case& of, comm::ElementType type) {
  comm::LossyOptions options;
  for (const auto traffic : {sim::TrafficClass::kSequenceForward, sim::TrafficClass::kSequenceBackward}) {
    if (traffic == sim::TrafficClass::kSequenceBackward && !of.loses_gradients) continue;
    comm::ClassNetwork& network = options.network.of(traffic).emplace();
    network.payload_bytes = 12 * comm::element_bytes(type);
    network.gather.loss = std::make_shared<sim::Bernoulli>(0.1);
    if (traffic == sim::TrafficClass::kSequenceForward) network.gather.fill = *of.fill;
  }
  return options;
}

/// Expects the bytes of the plan. For chunks on a device, the plan is an upper bound, because one of two buffers may
/// have had only short pieces.
void expect_planned(const Case& of, const StatefulAttention& attention, int rank, const Ops& ops) {
  const AttentionShape shape{kShape.batch, kShape.tokens, kShape.heads, kShape.width};
  const StatefulAttentionUse use = stateful_attention_use(of.options, rank, shape, /*states=*/1, ops.form());
  if (ops.form().device() == KernelDevice::kHost || of.options.chunk_tokens == 0) {
    EXPECT_EQ(attention.bytes(), use.memory);
  }
  EXPECT_LE(attention.bytes(), use.memory);
  EXPECT_GE(attention.bytes(), use.memory / 2);
}

/// A forward and a backward pass, with an evaluation of other inputs in between; by rank.
std::vector<RankResult> run(const Case& of, const Inputs& inputs, const Implementation& implementation) {
  std::vector<RankResult> results(static_cast<std::size_t>(of.options.sequence.ranks()));
  comm::run_ranks(of.options.sequence.ranks(), kTestTimeout, [&](comm::Communicator& plain) {
    std::optional<comm::LossyCommunicator> lossy;
    if (of.fill) lossy.emplace(plain, losing(of, implementation.form(1)->types().activations));
    comm::Communicator& group = lossy ? static_cast<comm::Communicator&>(*lossy) : plain;
    const std::unique_ptr<comm::Communicator> alone = group.split(group.rank(), 0);
    const std::unique_ptr<Ops> ops = implementation.make(*alone);
    SequenceParallel ranks;
    if (of.options.sequence.ranks() > 1) ranks.group = &group;
    SequenceCut cut(of.options.sequence, ranks);
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(kShape.batch * kShape.tokens));
    const Sequences sequences = cut.sequences({tokens, tokens, {kShape.batch, kShape.tokens}, mask_of(of).documents()});
    RankResult& result = results[static_cast<std::size_t>(group.rank())];
    result.positions = sequences.parts->positions(group.rank(), 1);
    const auto local = static_cast<std::int64_t>(result.positions.size());
    const AttentionShape shape{kShape.batch, local, kShape.heads, kShape.width};
    const std::int64_t elems = kShape.batch * local * kShape.heads * kShape.width;

    Bench bench(*ops);
    const comm::ElementType type = bench.types.activations;
    const auto tensor = [&](const WholeTensor& whole) {
      return bench.tensor(whole.part<double>(result.positions, 0, kShape.heads, TokenLayout::kBatchFirst), type);
    };
    const comm::Tensor qkv = bench.tensor(packed(inputs, result.positions), type);
    const comm::Tensor others = bench.tensor(packed(inputs.others(), result.positions), type);
    const comm::Tensor output = bench.empty(elems, type);
    const comm::Tensor grad_output = tensor(inputs.grad_output);
    const comm::Tensor grad_qkv = bench.empty(3 * elems, type);
    const std::unique_ptr<StatefulAttention> attention =
        make_stateful_attention(of.options, ranks, 0, kShape.heads, *ops);
    const DropoutMask dropout = dropout_of_keys(of.p_dropout);
    group.begin_step(1);
    attention->forward({0, 0, dropout}, sequences, shape, qkv, output);
    const comm::Tensor evaluated = bench.empty(elems, type);
    attention->forward({1, AttentionPlace::kEvaluation}, sequences, shape, others, evaluated);
    attention->backward({0, 0, dropout}, sequences, shape, output, grad_output, grad_qkv);
    const auto numbers_of = [&](const comm::Tensor& kept) {
      bench.keep(kept);
      return std::exchange(bench.results, {});
    };
    result.output = numbers_of(output);
    result.evaluated = numbers_of(evaluated);
    result.grad_qkv = numbers_of(grad_qkv);
    if (of.fill) return;
    // Another pass, because the buffers of a ring alternate.
    attention->forward({0, 0, dropout}, sequences, shape, qkv, output);
    attention->backward({0, 0, dropout}, sequences, shape, output, grad_output, grad_qkv);
    ops->synchronize();
    expect_planned(of, *attention, group.rank(), *ops);
  });
  return results;
}

/// The types of the fake device: each case runs there with one of them.
constexpr int kFakeTypes = 3;

/// One implementation for each processor and type; other choices do not concern StatefulAttention.
std::vector<Implementation> implementations_of_types() {
  std::set<std::pair<KernelDevice, comm::ElementType>> seen;
  std::vector<Implementation> all;
  int turns = 0;
  for (Implementation& implementation : implementations()) {
    if (!seen.emplace(implementation.device, implementation.form(1)->types().activations).second) continue;
    if (implementation.turn > 0) implementation.turn = ++turns;
    all.push_back(std::move(implementation));
  }
  return all;
}

void on_cases(const Fills& fills, const std::vector<double>& dropouts,
              const std::function<void(const Case&, const Implementation&)>& body) {
  for (const Implementation& implementation : implementations_of_types()) {
    int number = 0;
    for (const Case& of : cases_of(fills, dropouts)) {
      if (!implementation.takes(number++, kFakeTypes)) continue;
      SCOPED_TRACE(implementation.name + ", " + of.text());
      body(of, implementation);
    }
  }
}

/// The largest accepted difference of numbers of the order of 1.
double tolerance_of(const Implementation& implementation) { return std::max(1e-13, implementation.tolerance); }

/// Attention over all tokens, in which a key counts once for each branch.
class Dense {
 public:
  const DenseAttention& of(const Case& one, const Inputs& inputs, double p_dropout) {
    const auto [found, is_new] =
        known_.try_emplace({&inputs, one.has_documents(), one.options.branches.empty(), p_dropout});
    if (!is_new) return found->second;
    const auto bias = [&](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) {
      return mask_of(one).bias(b, q, k) + (one.options.branches.empty() ? 0 : log_visits(kBranches, h, q, k));
    };
    const auto factor = std::bind_front(factor_of_key, dropout_of_keys(p_dropout));
    return found->second = dense_attention(inputs.q, inputs.k, inputs.v, bias, inputs.grad_output, {}, factor);
  }

 private:
  std::map<std::tuple<const Inputs*, bool, bool, double>, DenseAttention> known_;
};

// Dilated attention with stopped weights has another gradient.
TEST(StatefulAttention, EqualsDenseAttention) {
  const Inputs inputs;
  const Inputs others = inputs.others();
  Dense dense;
  on_cases({std::nullopt}, {0, 0.3}, [&](const Case& of, const Implementation& implementation) {
    const DenseAttention& want = dense.of(of, inputs, of.p_dropout);
    const DenseAttention& of_others = dense.of(of, others, 0);
    const double tolerance = tolerance_of(implementation);
    for (const RankResult& got : run(of, inputs, implementation)) {
      const auto expect_part = [&](const Numbers& numbers, const WholeTensor& whole, const char* what) {
        const Numbers part = whole.part<double>(got.positions, 0, kShape.heads, TokenLayout::kBatchFirst);
        EXPECT_LE(largest_difference(numbers, part), tolerance) << what;
      };
      expect_part(got.output, want.output, "output");
      expect_part(got.evaluated, of_others.output, "evaluation");
      if (of.options.gradient == BranchGradient::kStopped) continue;
      const Numbers gradient = packed(want.grad_queries, want.grad_keys, want.grad_values, got.positions);
      EXPECT_LE(largest_difference(got.grad_qkv, gradient), tolerance) << "gradients";
    }
  });
}

/// The sum of outputs times their gradients, and of the gradients of queries, keys and values times the direction.
std::pair<double, double> sums_of(const std::vector<RankResult>& results, const Inputs& inputs) {
  const WholeTensor direction(kShape, Inputs::kDirection);
  std::pair<double, double> sums;
  for (const RankResult& result : results) {
    const Numbers grad_output =
        inputs.grad_output.part<double>(result.positions, 0, kShape.heads, TokenLayout::kBatchFirst);
    const Numbers along = packed(direction, direction, direction, result.positions);
    for (std::size_t i = 0; i < grad_output.size(); ++i) sums.first += grad_output[i] * result.output[i];
    for (std::size_t i = 0; i < along.size(); ++i) sums.second += along[i] * result.grad_qkv[i];
  }
  return sums;
}

// The gradient is also that of a forward pass with lost packets.
TEST(StatefulAttention, GradientsAreFiniteDifferences) {
  constexpr double kStep = 1e-5;
  const Inputs inputs;
  on_cases({std::nullopt, comm::Fill::kZero, comm::Fill::kAbsent}, {0, 0.3},
           [&](const Case& of, const Implementation& implementation) {
             if (of.options.gradient == BranchGradient::kStopped) return;
             if (implementation.form(1)->types().activations != comm::ElementType::kFloat64) return;
             const auto sum = [&](double by) {
               return sums_of(run(of, inputs.moved(by), implementation), inputs).first;
             };
             const double want = (sum(kStep) - sum(-kStep)) / (2 * kStep);
             EXPECT_NEAR(sums_of(run(of, inputs, implementation), inputs).second, want, 1e-8);
           });
}

TEST(StatefulAttention, InChunksHasTheBitsOfNoChunks) {
  const Inputs inputs;
  on_cases({std::nullopt, comm::Fill::kZero, comm::Fill::kAbsent}, {0.3},
           [&](const Case& of, const Implementation& implementation) {
             if (of.options.chunk_tokens == 0 || of.options.is_whole()) return;
             if (!of.fill && of.options.sequence.ranks() > 1) return;  // covered by the lossy ones
             Case in_chunks = of;
             in_chunks.loses_gradients = of.fill.has_value();
             Case whole = in_chunks;
             whole.options.chunk_tokens = 0;
             const std::vector<RankResult> got = run(in_chunks, inputs, implementation);
             const std::vector<RankResult> want = run(whole, inputs, implementation);
             for (std::size_t rank = 0; rank < got.size(); ++rank) {
               expect_equal(got[rank].output, want[rank].output, "output");
               expect_equal(got[rank].evaluated, want[rank].evaluated, "evaluation");
               expect_equal(got[rank].grad_qkv, want[rank].grad_qkv, "gradient");
             }
           });
}

// Packets have the same elements of any type, on any device.
TEST(StatefulAttention, LosesTheSameElementsOnEveryImplementation) {
  const Inputs inputs;
  std::map<std::string, std::vector<RankResult>> of_doubles;
  on_cases({comm::Fill::kZero, comm::Fill::kAbsent}, {0.3}, [&](const Case& of, const Implementation& implementation) {
    if (of.options.chunk_tokens > 0) return;
    Case lossy = of;
    lossy.loses_gradients = true;
    const std::vector<RankResult> got = run(lossy, inputs, implementation);
    const auto [found, is_first] = of_doubles.try_emplace(of.text(), got);
    Case lossless = of;
    lossless.fill.reset();
    const std::vector<RankResult> other = is_first ? run(lossless, inputs, implementation) : found->second;
    double output = 0;
    double gradient = 0;
    for (std::size_t rank = 0; rank < got.size(); ++rank) {
      output = std::max(output, largest_difference(got[rank].output, other[rank].output));
      gradient = std::max(gradient, largest_difference(got[rank].grad_qkv, other[rank].grad_qkv));
    }
    if (!is_first) {
      EXPECT_LE(std::max(output, gradient), tolerance_of(implementation));
    } else if (!of.has_documents()) {  // some documents attend to no lost key
      EXPECT_GT(std::min(output, gradient), 1e-2) << "nothing was lost";
      EXPECT_LT(std::max(output, gradient), 1e2);
    }
  });
}

TEST(DenseAttention, ANaNIsADifference) {
  EXPECT_EQ(largest_difference({std::nan(""), 0}, {0, 0}), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace droptest::models::stateful_attention_test
