// SPDX-License-Identifier: Apache-2.0
// Attention with its inputs in a file, in chunks, equals attention with its inputs in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/run_ranks.h"
#include "models/attention/attention_views.h"
#include "models/attention/stateful_attention.h"
#include "models/attention/token_attention.h"
#include "models/ops/host_ops.h"
#include "sim/error.h"
#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"
#include "tests/models/attention/dense_attention.h"
#include "tests/models/offload_files.h"
#include "tests/models/parallel_training.h"
#include "tests/sanitizers.h"

namespace droptest::models::whole_attention_test {
namespace {

constexpr std::int64_t kHeads = 3;
constexpr std::int64_t kWidth = 4;

AttentionOptions in_chunks(std::int64_t tokens) {
  AttentionOptions options;
  options.chunk_tokens = tokens;
  return options;
}

/// A block's tensors, by a formula.
struct Block {
  AttentionShape shape;
  Doubles qkv, grad_output, output, grad_qkv;

  Block(const AttentionShape& s, std::uint64_t number)
      : shape(s),
        qkv(formula_numbers(2 * number, 3 * head_shape(s).elems())),
        grad_output(formula_numbers(2 * number + 1, head_shape(s).elems())),
        output(grad_output.size()),
        grad_qkv(qkv.size(), 7) {}

  WholeTensor part(const Doubles& packed, std::int64_t i) const {
    WholeTensor whole(head_shape(shape));
    copy_heads<double>(part_of_qkv(std::span<const double>(packed), i, shape),
                       tokens_of(std::span(whole.elems), shape));
    return whole;
  }
  DenseAttention dense(const ScoreBias& bias) const {
    WholeTensor grad(head_shape(shape));
    grad.elems = grad_output;
    return dense_attention(part(qkv, 0), part(qkv, 1), part(qkv, 2), bias, grad);
  }
};

Sequences sequences_of(const AttentionShape& shape, std::vector<std::int32_t> documents = {}) {
  return {std::make_shared<const SequenceParts>(SequenceParts::even(shape.length, 1)),
          {{0, shape.length}},
          std::move(documents)};
}

/// Calls test(attention) with an attention that has an offload file in the folder.
template <class Test>
void with_attention(std::int64_t chunk_tokens, comm::ElementType type, const std::string& folder, const Test& test) {
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    const std::unique_ptr<Ops> ops = make_host_ops({.type = type, .threads = 2, .offload_directory = folder}, group);
    test(*make_stateful_attention(in_chunks(chunk_tokens), {}, 0, kHeads, *ops));
  });
}

void forward(StatefulAttention& attention, const AttentionPlace& at, const Sequences& sequences, Block& block) {
  attention.forward(at, sequences, block.shape, std::span<const double>(block.qkv), std::span(block.output));
}
void backward(StatefulAttention& attention, const AttentionPlace& at, const Sequences& sequences, Block& block) {
  attention.backward(at, sequences, block.shape, std::span<const double>(block.output),
                     std::span<const double>(block.grad_output), std::span(block.grad_qkv));
}

/// Documents of three sequences: short ones, one that is whole, and one with padding at its end.
std::vector<std::int32_t> documents_of(std::int64_t length) {
  std::vector<std::int32_t> documents;
  for (std::int64_t i = 0; i < length; ++i) documents.push_back(static_cast<std::int32_t>(i / 3));
  for (std::int64_t i = 0; i < length; ++i) documents.push_back(0);
  for (std::int64_t i = 0; i < length; ++i) documents.push_back(i < length / 2 ? 5 : -1);
  return documents;
}

// Two blocks and two slots are between their passes at once, with an evaluation in between.
TEST(WholeAttention, EqualsDenseAttentionForEveryLengthAndChunk) {
  for (const std::int64_t length : {1, 5, 13}) {
    const AttentionShape shape{3, length, kHeads, kWidth};
    for (const bool within_documents : {false, true}) {
      const std::vector<std::int32_t> documents = within_documents ? documents_of(length) : std::vector<std::int32_t>();
      const auto bias = [&](std::int64_t b, std::int64_t /*h*/, std::int64_t q, std::int64_t k) {
        const auto of = [&](std::int64_t t) { return documents[static_cast<std::size_t>(b * length + t)]; };
        const bool sees = k <= q && (!within_documents || (of(q) == of(k) && of(k) >= 0));
        return sees ? 0.0 : -std::numeric_limits<double>::infinity();
      };
      const Sequences sequences = sequences_of(shape, documents);
      for (const std::int64_t chunk : {1, 3, 4, 13, 64}) {
        SCOPED_TRACE(std::to_string(length) + " tokens in chunks of " + std::to_string(chunk));
        with_attention(chunk, comm::ElementType::kFloat64, "", [&](StatefulAttention& attention) {
          const std::vector<AttentionPlace> places = {{0, 0}, {1, 0}, {0, 1}, {1, 1}};
          std::vector<Block> blocks;
          for (std::size_t i = 0; i < places.size(); ++i) {
            forward(attention, places[i], sequences, blocks.emplace_back(shape, i));
            Block evaluated(shape, 9);
            forward(attention, {places[i].layer, AttentionPlace::kEvaluation}, sequences, evaluated);
          }
          for (const std::size_t i : {1U, 0U, 3U, 2U}) backward(attention, places[i], sequences, blocks[i]);
          for (const Block& block : blocks) {
            const DenseAttention want = block.dense(bias);
            EXPECT_LE(largest_difference(block.output, want.output.elems), 1e-12);
            EXPECT_LE(largest_difference(block.part(block.grad_qkv, 0).elems, want.grad_queries.elems), 1e-12);
            EXPECT_LE(largest_difference(block.part(block.grad_qkv, 1).elems, want.grad_keys.elems), 1e-12);
            EXPECT_LE(largest_difference(block.part(block.grad_qkv, 2).elems, want.grad_values.elems), 1e-12);
          }
        });
      }
    }
  }
}

TEST(WholeAttention, TakesSequencesOfAnotherLength) {
  with_attention(4, comm::ElementType::kFloat64, "", [&](StatefulAttention& attention) {
    for (const std::int64_t length : {6, 13, 2}) {
      const AttentionShape shape{2, length, kHeads, kWidth};
      Block block(shape, 3);
      forward(attention, {0, 0}, sequences_of(shape), block);
      backward(attention, {0, 0}, sequences_of(shape), block);
      const DenseAttention want = block.dense([](std::int64_t, std::int64_t, std::int64_t q, std::int64_t k) {
        return k <= q ? 0.0 : -std::numeric_limits<double>::infinity();
      });
      EXPECT_LE(largest_difference(block.output, want.output.elems), 1e-12);
      EXPECT_LE(largest_difference(block.part(block.grad_qkv, 1).elems, want.grad_keys.elems), 1e-12);
    }
  });
}

// A state that first has no row, and then has some, is not confused with the next state.
TEST(WholeAttention, TakesABatchWithoutARow) {
  with_attention(4, comm::ElementType::kFloat64, "", [&](StatefulAttention& attention) {
    const AttentionShape shape{2, 6, kHeads, kWidth};
    Block none({0, 6, kHeads, kWidth}, 0);
    Block first(shape, 1);
    Block second(shape, 2);
    forward(attention, {0, 0}, sequences_of(shape), none);
    forward(attention, {1, 0}, sequences_of(shape), second);
    forward(attention, {0, 0}, sequences_of(shape), first);
    const DenseAttention want = second.dense([](std::int64_t, std::int64_t, std::int64_t q, std::int64_t k) {
      return k <= q ? 0.0 : -std::numeric_limits<double>::infinity();
    });
    backward(attention, {1, 0}, sequences_of(shape), second);
    EXPECT_LE(largest_difference(second.part(second.grad_qkv, 1).elems, want.grad_keys.elems), 1e-12);
  });
}

TEST(WholeAttention, NamesAFileThatWasCut) {
  const TemporaryFolder folder;
  const AttentionShape shape{1, 64, kHeads, kWidth};
  with_attention(8, comm::ElementType::kFloat64, folder.path(), [&](StatefulAttention& attention) {
    Block block(shape, 1);
    forward(attention, {0, 0}, sequences_of(shape), block);
    cut_offload_files(folder.path(), 100);
    EXPECT_THAT(config_error_of([&] {
                  // The first truncation may come before the last write, which restores the length of the file with a
                  // hole.
                  backward(attention, {0, 0}, sequences_of(shape), block);
                }),
                testing::AllOf(testing::HasSubstr("offload file " + folder.path() + "/droptest-offload-"),
                               testing::HasSubstr("the file has been cut")));
  });
}

/// The bytes of the program's live allocations.
std::uint64_t bytes_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// The rooms of chunks and the buffers of the file stay after a pass.
TEST(WholeAttention, HoldsTheMemoryOfItsPlan) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's allocator, which does not tell the memory in use";
  const AttentionShape shape{1, 1100, 4, 64};
  constexpr int kBlocks = 5;
  const std::uint64_t elems = head_shape(shape).elems();
  const std::vector<float> qkv(3 * elems, 0.25F);
  std::vector<float> output(elems);
  std::vector<float> grad_qkv(3 * elems);
  const Sequences sequences = sequences_of(shape);
  for (const std::int64_t chunk : {256, 300, 2000}) {
    with_attention(chunk, comm::ElementType::kFloat32, "", [&](StatefulAttention& attention) {
      const auto pass = [&](StatefulAttention& of) {
        for (int layer = 0; layer < kBlocks; ++layer) {
          of.forward({layer, 0}, sequences, shape, std::span(qkv), std::span(output));
        }
        of.forward({0, AttentionPlace::kEvaluation}, sequences, shape, std::span(qkv), std::span(output));
        for (int layer = kBlocks - 1; layer >= 0; --layer) {
          of.backward({layer, 0}, sequences, shape, std::span<const float>(output), std::span<const float>(output),
                      std::span(grad_qkv));
        }
      };
      // The libraries keep some memory after their first call.
      with_attention(chunk, comm::ElementType::kFloat32, "", pass);
      const std::uint64_t before = bytes_in_use();
      pass(attention);
      const auto measured = static_cast<double>(bytes_in_use() - before);
      const StatefulAttentionUse use =
          stateful_attention_use(in_chunks(chunk), 0, shape, kBlocks, *host_ops_form({.threads = 2}, 1));
      EXPECT_EQ(attention.bytes(), use.memory);
      EXPECT_EQ(use.stored, kBlocks * 3 * elems * sizeof(float));
      const double share = measured / static_cast<double>(use.memory);
      EXPECT_LE(share, 1.05) << chunk;
      // If there is one chunk, the last buffer of the file only exists if a write was under way when a read began.
      EXPECT_GE(share, chunk < shape.length ? 0.95 : 0.8) << chunk;
    });
  }
}

/// A training in chunks, and the same training with everything in memory.
void expect_equal_to_memory(Training run, std::int64_t chunk) {
  const TrainingResult want = train<double>(run);
  run.config.attention.chunk_tokens = chunk;
  const TrainingResult got = train<double>(run);
  for (std::size_t s = 0; s < want.steps.size(); ++s) EXPECT_NEAR(got.steps[s].loss / want.steps[s].loss, 1, 1e-12);
  EXPECT_NEAR(got.evaluation / want.evaluation, 1, 1e-12);
  for (const auto& [name, values] : want.of_replica[0]) {
    EXPECT_LE(relative_difference(got.of_replica[0].at(name), values), 1e-11) << name;
  }
}

TEST(WholeAttention, TrainsTheSameModel) {
  for (const std::int64_t chunk : {2, 4, 100}) expect_equal_to_memory({.sequences = 2}, chunk);
}

TEST(WholeAttention, TrainsTheSameModelWithinDocuments) {
  Training run{.sequences = 2, .documents = true};
  run.config.attention.within = AttentionOptions::Within::kDocument;
  expect_equal_to_memory(run, 2);
}

TEST(WholeAttention, TrainsTheSameModelWithDropout) {
  Training run{.tensor = 2, .sequences = 2};
  run.config.dropout = {0.2, 0.15, 0.1, 9};
  expect_equal_to_memory(run, 4);
  run.documents = true;
  run.config.attention.within = AttentionOptions::Within::kDocument;
  expect_equal_to_memory(run, 4);
}

TEST(WholeAttention, TrainsTheSameModelInEveryLayout) {
  expect_equal_to_memory({.data = 2, .tensor = 2, .micro_batches = 2, .sharding = small_buckets(1)}, 4);
  expect_equal_to_memory({.pipeline = 2, .kind = ScheduleKind::kZeroBubble, .micro_batches = 3}, 4);
  expect_equal_to_memory({.tensor = 2, .memory = {.recompute = {Recompute::kBlock}, .place = {.offloaded = true}}}, 4);
  expect_equal_to_memory({.tensor = 2, .memory = {.recompute = {Recompute::kBlock}, .tensor_sequence = true}}, 4);
  expect_equal_to_memory({.memory = {.recompute = {Recompute::kSelective}}}, 4);
}

// The state of a block, except its output and row statistics, is in the file.
TEST(WholeAttention, TakesLessMemoryThanDenseAttention) {
  Training run{.config{8, 32, 4, 64, 97}, .sequences = 4, .length = 64, .steps = 1};
  const std::uint64_t dense = train<double>(run).bytes;
  run.config.attention.chunk_tokens = 8;
  const std::uint64_t chunked = train<double>(run).bytes;
  EXPECT_LT(chunked + 8 * 2 * 4 * 64 * 32 * sizeof(double), dense);
}

TEST(WholeAttention, ThatDoesNotFitIsRefused) {
  const auto error_of = [](AttentionOptions options, std::int64_t chunk) {
    options.chunk_tokens = chunk;
    return config_error_of([&] { validate(options, 4); });
  };
  EXPECT_EQ(error_of({}, -1), "GPT-2: attention in chunks of -1 tokens: got fewer than 0");
}

}  // namespace
}  // namespace droptest::models::whole_attention_test
