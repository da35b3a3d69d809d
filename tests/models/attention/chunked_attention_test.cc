// SPDX-License-Identifier: Apache-2.0
// Attention in chunks equals attention of the whole sequence, and needs the memory of its formula.
#include "models/attention/chunked_attention.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>

#include "models/attention/sequence_parts.h"
#include "sim/error.h"
#include "tests/models/attention/dense_attention.h"
#include "tests/models/dropout_draws.h"
#include "tests/sanitizers.h"

namespace droptest::models::chunked_attention_test {
namespace {

std::vector<std::int64_t> positions_of(const std::vector<TokenRun>& runs, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> positions;
  for (const TokenRun& run : cut_runs(runs, first, count)) {
    for (std::int64_t i = 0; i < run.count; ++i) positions.push_back(run.positions(i).first);
  }
  return positions;
}

/// The bytes of the program's live allocations.
std::uint64_t bytes_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// A file in memory. It records the largest number of bytes that the program has in use.
class WatchingFile final : public ByteFile {
 public:
  /// Room for values of these sizes, each followed by the number of its put().
  explicit WatchingFile(std::size_t bytes) : bytes_(bytes + kNumbers) {}
  void reserve(std::uint64_t bytes, const std::string& /*purpose*/) override { ASSERT_LE(bytes, bytes_.size()); }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    note();
    std::memcpy(bytes_.data() + offset, bytes.data(), bytes.size());
  }
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) override {
    note();
    std::memcpy(bytes.data(), bytes_.data() + offset, bytes.size());
  }
  const std::string& name() const override { return name_; }
  std::uint64_t most() const { return most_; }

 private:
  static constexpr std::size_t kNumbers = 1U << 16U;
  void note() { most_ = std::max<std::uint64_t>(most_, bytes_in_use()); }
  std::vector<std::byte> bytes_;
  std::atomic<std::uint64_t> most_ = 0;
  std::string name_ = "watching file";
};

struct Chunked {
  WholeTensor output, grad_queries, grad_keys, grad_values;
};

/// The forward pass of each chunk as soon as all chunks that it sees were put; the backward pass from the last chunk to
/// the first.
Chunked run_chunked(const HeadShape& shape, const std::vector<TokenRun>& tokens, std::int64_t chunk_tokens,
                    const AttentionMask& mask, bool streams, OffloadFile& file, const DropoutMask& dropout = {}) {
  ChunkedAttention<double> attention(shape, tokens, chunk_tokens, file, 17);
  Chunked result{WholeTensor(shape), WholeTensor(shape), WholeTensor(shape), WholeTensor(shape)};
  const WholeTensor q(shape, 1);
  const WholeTensor k(shape, 2);
  const WholeTensor v(shape, 3);
  const WholeTensor dout(shape, 4);
  const auto layout = TokenLayout::kBatchFirst;
  const auto positions = [&](int chunk) {
    return positions_of(tokens, chunk * chunk_tokens, attention.chunk_shape(chunk).tokens);
  };
  const auto part = [&](const WholeTensor& whole, int chunk) {
    return whole.part<double>(positions(chunk), 0, shape.heads, layout);
  };
  const auto view = [&](const Doubles& elems, int chunk) {
    return view_of("chunk", std::span<const double>(elems), attention.chunk_shape(chunk), layout);
  };
  const auto room = [&](Doubles& elems, int chunk) {
    elems.assign(attention.chunk_shape(chunk).elems(), std::numeric_limits<double>::quiet_NaN());
    return view_of("chunk", std::span(elems), attention.chunk_shape(chunk), layout);
  };
  const auto keep = [&](const Doubles& elems, int chunk, WholeTensor& whole) {
    auto from = elems.begin();
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (const std::int64_t t : positions(chunk)) {
        for (std::int64_t h = 0; h < shape.heads; ++h) {
          for (std::int64_t d = 0; d < shape.width; ++d) whole.at(b, t, h, d) = *from++;
        }
      }
    }
  };
  std::vector<Doubles> outputs(static_cast<std::size_t>(attention.chunks()));
  std::vector<Doubles> log_sum_exps(outputs.size());
  const auto forward = [&](int chunk) {
    const auto i = static_cast<std::size_t>(chunk);
    log_sum_exps[i].resize(attention.chunk_shape(chunk).elems() / static_cast<std::uint64_t>(shape.width));
    const Doubles queries = part(q, chunk);
    attention.forward(chunk, view(queries, chunk), mask, room(outputs[i], chunk), log_sum_exps[i], 1, dropout);
    keep(outputs[i], chunk, result.output);
  };
  for (int pass = 0; pass < 2; ++pass) {  // the second one begins again
    for (int chunk = 0; chunk < attention.chunks(); ++chunk) {
      attention.put(chunk, view(part(k, chunk), chunk), view(part(v, chunk), chunk));
      if (streams) forward(chunk);
    }
    for (int chunk = 0; !streams && chunk < attention.chunks(); ++chunk) forward(chunk);
    Doubles dq, dk, dv;
    const auto take = [&](int chunk) {
      attention.take_gradients(chunk, room(dk, chunk), room(dv, chunk));
      keep(dk, chunk, result.grad_keys);
      keep(dv, chunk, result.grad_values);
    };
    for (int chunk = attention.chunks() - 1; chunk >= 0; --chunk) {
      const auto i = static_cast<std::size_t>(chunk);
      const Doubles queries = part(q, chunk);
      const Doubles grad = part(dout, chunk);
      attention.backward(chunk, view(queries, chunk), mask,
                         {view(outputs[i], chunk), log_sum_exps[i], view(grad, chunk)}, room(dq, chunk), 1, dropout);
      keep(dq, chunk, result.grad_queries);
      if (streams) take(chunk);
    }
    for (int chunk = 0; !streams && chunk < attention.chunks(); ++chunk) take(chunk);
  }
  return result;
}

TEST(ChunkedAttention, EqualsAttentionAtOnceUnderEveryMaskAndPairOfMasks) {
  const HeadShape shape{2, 13, 3, 2};
  for (const std::vector<MaskKind>& kinds : all_mask_kinds()) {
    const TestMask mask(kinds, 2, 13);
    const DenseAttention dense = dense_attention(WholeTensor(shape, 1), WholeTensor(shape, 2), WholeTensor(shape, 3),
                                                 mask.score_bias(), WholeTensor(shape, 4));
    for (const std::int64_t chunk : {1, 4, 5, 13, 20}) {
      OffloadFile file(make_offload_file(""));
      const Chunked got = run_chunked(shape, {{0, 13, 0}}, chunk, mask.mask(), mask.is_causal(), file);
      EXPECT_LE(largest_difference(got.output.elems, dense.output.elems), 1e-12) << mask_name(kinds) << ", " << chunk;
      EXPECT_LE(largest_difference(got.grad_queries.elems, dense.grad_queries.elems), 1e-12);
      EXPECT_LE(largest_difference(got.grad_keys.elems, dense.grad_keys.elems), 1e-12);
      EXPECT_LE(largest_difference(got.grad_values.elems, dense.grad_values.elems), 1e-12);
    }
  }
}

TEST(ChunkedAttention, WithDropoutDrawsTheMasksOfAttentionAtOnce) {
  const HeadShape shape{2, 13, 3, 2};
  const TestMask mask({MaskKind::kCausal, MaskKind::kPairsAdded}, 2, 13);
  const DropoutMask dropout = dropout_of_keys(0.3);
  const DenseAttention dense =
      dense_attention(WholeTensor(shape, 1), WholeTensor(shape, 2), WholeTensor(shape, 3), mask.score_bias(),
                      WholeTensor(shape, 4), {}, std::bind_front(factor_of_key, dropout));
  for (const std::int64_t chunk : {1, 4, 13}) {
    OffloadFile file(make_offload_file(""));
    const Chunked got = run_chunked(shape, {{0, 13, 0}}, chunk, mask.mask(), true, file, dropout);
    EXPECT_LE(largest_difference(got.output.elems, dense.output.elems), 1e-12) << chunk;
    EXPECT_LE(largest_difference(got.grad_queries.elems, dense.grad_queries.elems), 1e-12);
    EXPECT_LE(largest_difference(got.grad_keys.elems, dense.grad_keys.elems), 1e-12);
    EXPECT_LE(largest_difference(got.grad_values.elems, dense.grad_values.elems), 1e-12);
  }
}

// The positions of a zigzag part: early chunks see later ones.
TEST(ChunkedAttention, TakesTokensOfAnyPositions) {
  const HeadShape shape{1, 14, 2, 2};
  const TestMask mask({MaskKind::kCausal}, 1, 14);
  const DenseAttention dense = dense_attention(WholeTensor(shape, 1), WholeTensor(shape, 2), WholeTensor(shape, 3),
                                               mask.score_bias(), WholeTensor(shape, 4));
  OffloadFile file(make_offload_file(""));
  const Chunked got = run_chunked(shape, SequenceParts::zigzag(14, 3).runs(0, 3), 4, mask.mask(), false, file);
  EXPECT_LE(largest_difference(got.output.elems, dense.output.elems), 1e-12);
  EXPECT_LE(largest_difference(got.grad_keys.elems, dense.grad_keys.elems), 1e-12);
}

TEST(ChunkedAttention, RefusesQueriesBeforeTheirKeysAndChunksOfNothing) {
  const HeadShape shape{1, 6, 1, 1};
  OffloadFile file(make_offload_file(""));
  EXPECT_THROW(ChunkedAttention<double>(shape, {{0, 6, 0}}, 0, file), ConfigError);
  ChunkedAttention<double> attention(shape, {{0, 6, 0}}, 3, file);
  Doubles elems(3);
  const auto view = view_of("t", std::span(elems), attention.chunk_shape(0), TokenLayout::kBatchFirst);
  attention.put(0, view, view);
  Doubles lse(3);
  EXPECT_NO_THROW(attention.forward(0, view, AttentionMask(Causality::kCausal), view, lse, 1));
  EXPECT_THROW(attention.forward(1, view, AttentionMask(Causality::kCausal), view, lse, 1), CheckError);
  EXPECT_THROW(attention.forward(0, view, AttentionMask(Causality::kAny), view, lse, 1), CheckError);
}

constexpr std::int64_t kChunk = 512;

/// The peak memory of a forward and of a backward pass, minus the memory before them.
std::pair<double, double> most_memory(const HeadShape& shape, double& of_forward, double& of_backward, double& tensor) {
  auto owned = std::make_unique<WatchingFile>(4 * shape.elems() * sizeof(float));
  WatchingFile& watched = *owned;
  const std::vector<float> chunk(kChunk * 4 * 64, 0.5F);
  std::vector<float> output(chunk.size());
  std::vector<float> log_sum_exp(kChunk * 4);
  const AttentionMask mask(Causality::kCausal);
  const std::uint64_t before = bytes_in_use();
  OffloadFile file(std::move(owned));
  ChunkedAttention<float> attention(shape, {{0, shape.tokens, 0}}, kChunk, file);
  const auto view = view_of("chunk", std::span(chunk), attention.chunk_shape(0), TokenLayout::kBatchFirst);
  const auto out = view_of("chunk", std::span(output), attention.chunk_shape(0), TokenLayout::kBatchFirst);
  for (int c = 0; c < attention.chunks(); ++c) {
    attention.put(c, view, view);
    attention.forward(c, view, mask, out, log_sum_exp, 1);
  }
  const auto forward = static_cast<double>(watched.most() - before);
  for (int c = attention.chunks() - 1; c >= 0; --c) {
    attention.backward(c, view, mask, {view, log_sum_exp, view}, out, 1);
    attention.take_gradients(c, out, out);
  }
  of_forward = static_cast<double>(attention.forward_bytes(1));
  of_backward = static_cast<double>(attention.backward_bytes(1));
  tensor = static_cast<double>(chunk.size() * sizeof(float));
  return {forward, static_cast<double>(watched.most() - before)};
}

// The two tensors that are being written to the file may be in memory or not at the time of the measurement.
TEST(ChunkedAttention, MostMemoryIsForwardBytesAndBackwardBytes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's allocator, which does not tell the memory in use";
  const HeadShape shape{1, 5 * kChunk, 4, 64};
  double of_forward = 0;
  double of_backward = 0;
  double tensor = 0;
  most_memory(shape, of_forward, of_backward, tensor);  // the libraries keep some memory after their first call
  const auto [forward, backward] = most_memory(shape, of_forward, of_backward, tensor);
  EXPECT_LE(forward, 1.05 * of_forward);
  EXPECT_GE(forward, 0.95 * (of_forward - 2 * tensor));
  EXPECT_LE(backward, 1.05 * of_backward);
  EXPECT_GE(backward, 0.95 * (of_backward - 2 * tensor));
}

}  // namespace
}  // namespace droptest::models::chunked_attention_test
