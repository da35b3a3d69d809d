// SPDX-License-Identifier: Apache-2.0
// A caller's own attention over ranks, with the shapes, lengths and masks that cause errors in similar wrappers.
#include "models/attention/distributed_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "tests/comm/observed_communicator.h"
#include "tests/models/attention/dense_attention.h"
#include "tests/models/attention/local_dense_attention.h"

namespace droptest::models::distributed_attention_test {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kTimeout{60000};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// This rank's largest difference from dense attention on one rank.
double error_on(comm::Communicator& group, const HeadShape& whole, const TestMask& mask,
                const std::vector<std::int64_t>& lengths, TokenLayout layout, const DenseAttention& want) {
  DenseLocalAttention local;
  DistributedAttention<double> attention(group, local, layout, whole.heads, whole.width);
  const std::int64_t tokens = lengths[static_cast<std::size_t>(group.rank())];
  attention.set_lengths(whole.batch, tokens);
  const std::vector<std::int64_t> positions = attention.parts().positions(group.rank(), 1);
  const auto part = [&](const WholeTensor& tensor) { return tensor.part<double>(positions, 0, whole.heads, layout); };
  const std::array<std::int64_t, 4> extents = layout == TokenLayout::kBatchFirst
                                                  ? std::array{whole.batch, tokens, whole.heads, whole.width}
                                                  : std::array{tokens, whole.batch, whole.heads, whole.width};
  const Doubles q = part(WholeTensor(whole, 1));
  const Doubles k = part(WholeTensor(whole, 2));
  const Doubles v = part(WholeTensor(whole, 3));
  const Doubles dout = part(WholeTensor(whole, 4));
  Doubles output(q.size()), dq(q.size()), dk(q.size()), dv(q.size());
  attention.forward({q, extents}, {k, extents}, {v, extents}, attention.combine(mask.mask()), output);
  attention.backward({dout, extents}, dq, dk, dv);
  const auto heads = comm::even_counts(static_cast<std::uint64_t>(whole.heads), group.world_size());
  std::int64_t first = 0;
  for (int r = 0; r < group.rank(); ++r) first += static_cast<std::int64_t>(heads[static_cast<std::size_t>(r)]);
  EXPECT_EQ(local.first_heads, (std::vector<std::int64_t>{first, first}));
  return std::max({largest_difference(output, part(want.output)), largest_difference(dq, part(want.grad_queries)),
                   largest_difference(dk, part(want.grad_keys)), largest_difference(dv, part(want.grad_values))});
}

TEST(DistributedAttention, EqualsTheLocalAttentionOnOneRank) {
  for (const std::vector<MaskKind>& kinds : all_mask_kinds()) {
    for (const std::int64_t length : {1, 2, 4, 5, 13}) {
      const HeadShape whole{2, length, 7, 2};
      const TestMask mask(kinds, 2, length);
      const DenseAttention dense = dense_attention(WholeTensor(whole, 1), WholeTensor(whole, 2), WholeTensor(whole, 3),
                                                   mask.score_bias(), WholeTensor(whole, 4));
      for (const int ranks : {1, 2, 4}) {
        std::vector<std::int64_t> even;
        for (const std::uint64_t count : comm::even_counts(static_cast<std::uint64_t>(length), ranks)) {
          even.push_back(static_cast<std::int64_t>(count));
        }
        std::vector<std::int64_t> last(static_cast<std::size_t>(ranks), 0);
        last.back() = length;
        comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& group) {
          for (const TokenLayout layout : {TokenLayout::kBatchFirst, TokenLayout::kSequenceFirst}) {
            EXPECT_LE(error_on(group, whole, mask, even, layout, dense), 1e-12) << mask_name(kinds) << " " << length;
            EXPECT_LE(error_on(group, whole, mask, last, layout, dense), 1e-12) << mask_name(kinds) << " " << length;
          }
        });
      }
    }
  }
}

TEST(DistributedAttention, ExchangesLengthsOnlyWhenTheyAreSet) {
  comm::run_ranks(2, kTimeout, [](comm::Communicator& inner) {
    std::vector<std::string> messages;
    comm::ObservedCommunicator group(
        inner, [&](const comm::Message& message, std::size_t) { messages.emplace_back(message.name); });
    DenseLocalAttention local;
    DistributedAttention<double> attention(group, local, TokenLayout::kBatchFirst, 2, 1);
    const std::int64_t tokens = 1 + group.rank();
    attention.set_lengths(1, tokens);
    EXPECT_EQ(messages, std::vector<std::string>{"sequence.lengths"});
    messages.clear();
    const Doubles ones(static_cast<std::size_t>(2 * tokens), 1);
    const DistributedAttention<double>::Input input{ones, {1, tokens, 2, 1}};
    Doubles output(ones.size());
    const SharedMask<double> causal = attention.combine(AttentionMask(Causality::kCausal));
    for (int call = 0; call < 2; ++call) attention.forward(input, input, input, causal, output);
    const std::vector<std::string> four = {"attention.queries", "attention.keys", "attention.values",
                                           "attention.output"};
    std::vector<std::string> twice = four;
    twice.insert(twice.end(), four.begin(), four.end());
    EXPECT_EQ(messages, twice);
    // Masks that depend only on the shape are cached; masks of a batch are not, because their numbers change.
    EXPECT_EQ(attention.combine(AttentionMask(Causality::kCausal)), causal);
    EXPECT_EQ(attention.combine(AttentionMask(Causality::kAny)), nullptr);
    std::vector<std::uint8_t> keys(3, 1);
    const AttentionMask padding(Causality::kAny, {1, 3, 3},
                                {{MaskArray::Axes::kKeys, std::span<const std::uint8_t>(keys)}});
    EXPECT_EQ(*attention.combine(padding), Doubles(9, 0));
    keys[1] = 0;
    EXPECT_EQ((*attention.combine(padding))[1], -kInfinity);
    attention.set_lengths(2, tokens);
    EXPECT_NE(attention.combine(AttentionMask(Causality::kCausal)), causal);
  });
}

TEST(DistributedAttention, RefusesWrongShapes) {
  comm::run_ranks(2, kTimeout, [](comm::Communicator& group) {
    const auto error = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const ConfigError& e) {
        return e.what();
      }
      return "no error";
    };
    DenseLocalAttention local;
    using Attention = DistributedAttention<double>;
    EXPECT_THAT(error([&] { Attention(group, local, TokenLayout::kBatchFirst, 1, 2); }),
                HasSubstr("got 1 heads for 2"));
    Attention attention(group, local, TokenLayout::kBatchFirst, 4, 2);
    attention.set_lengths(3, 5);
    Doubles elems(3 * 5 * 4 * 2);
    const Attention::Input good{elems, {3, 5, 4, 2}};
    const Attention::Input other_layout{elems, {5, 3, 4, 2}};
    EXPECT_EQ(
        error([&] { attention.forward(other_layout, good, good, nullptr, elems); }),
        "queries: axis 0 (batch): got 5, want 3 of [batch 3, tokens 5, heads 4, width 2]; the shape is that of the "
        "layout sequence first");
    const auto wrong = std::make_shared<const Doubles>(25);
    EXPECT_THAT(error([&] { attention.forward(good, good, good, wrong, elems); }),
                HasSubstr("mask: got 25 elements, want [batch 3, queries 10, keys 10]"));
  });
  EXPECT_EQ(token_layout_from_name("sequence_first"), TokenLayout::kSequenceFirst);
  EXPECT_EQ(token_layout_from_name("batch_first"), TokenLayout::kBatchFirst);
  EXPECT_THROW(token_layout_from_name("bshd"), ConfigError);
}

// At loss 1, a rank has only its own tokens; the fill `absent` leaves the others out of the softmax.
TEST(DistributedAttention, GivesTheAbsentKeysToTheLocalAttention) {
  const HeadShape whole{1, 6, 2, 2};
  comm::run_ranks(2, kTimeout, [&](comm::Communicator& inner) {
    comm::ClassNetwork network;
    network.payload_bytes = 16;
    network.gather.loss = std::make_shared<sim::Bernoulli>(1);
    network.gather.fill = comm::Fill::kAbsent;
    comm::LossyOptions options;
    options.network.of(sim::TrafficClass::kSequenceForward) = network;
    comm::LossyCommunicator group(inner, options);
    const std::int64_t me = group.rank();
    const DenseAttention dense = dense_attention(
        WholeTensor(whole, 1), WholeTensor(whole, 2), WholeTensor(whole, 3),
        [&](std::int64_t, std::int64_t h, std::int64_t q, std::int64_t k) {
          return h == me && q / 3 == me && k / 3 == me ? 0 : -kInfinity;
        },
        WholeTensor(whole, 4));
    const TestMask none({MaskKind::kNone}, 1, 6);
    // Gradients of keys and values also come from the other rank's queries, which it lost: the output decides.
    DenseLocalAttention local;
    DistributedAttention<double> attention(group, local, TokenLayout::kBatchFirst, 2, 2);
    attention.set_lengths(1, 3);
    const auto positions = attention.parts().positions(group.rank(), 1);
    const auto part = [&](const WholeTensor& t) { return t.part<double>(positions, 0, 2, TokenLayout::kBatchFirst); };
    const Doubles q = part(WholeTensor(whole, 1));
    const Doubles k = part(WholeTensor(whole, 2));
    const Doubles v = part(WholeTensor(whole, 3));
    Doubles output(q.size());
    attention.forward({q, {1, 3, 2, 2}}, {k, {1, 3, 2, 2}}, {v, {1, 3, 2, 2}}, nullptr, output);
    EXPECT_LE(largest_difference(output, part(dense.output)), 1e-12);
  });
}

}  // namespace
}  // namespace droptest::models::distributed_attention_test
