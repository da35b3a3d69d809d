// SPDX-License-Identifier: Apache-2.0
// The estimate against what a model really allocates: this program counts its allocations.
#include "models/gpt2/host_activations.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "comm/run_ranks.h"
#include "models/gpt2/gpt2.h"
#include "models/kernels/attention.h"
#include "tests/models/formula_model.h"

namespace {

std::atomic<std::int64_t> held_bytes = 0;

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  held_bytes += static_cast<std::int64_t>(::malloc_usable_size(memory));
  return memory;
}

void give_back(void* memory) {
  if (memory != nullptr) held_bytes -= static_cast<std::int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(std::malloc(bytes == 0 ? 1 : bytes)); }
void* operator new[](std::size_t bytes) { return counted(std::malloc(bytes == 0 ? 1 : bytes)); }
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t /*bytes*/) noexcept { give_back(memory); }

namespace droptest::models {
namespace {

/// What a model of one rank holds after a step, less what it held before.
std::int64_t step_bytes(const Gpt2Config& config, int batch, int length) {
  std::int64_t bytes = 0;
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    Gpt2<float> model(config, group, 1);
    model.initialize(1);
    const int count = batch * length;
    const auto tokens = formula_tokens(0, count, config.vocabulary);
    const auto targets = formula_tokens(1, count, config.vocabulary);
    const std::int64_t before = held_bytes;
    model.forward_backward(tokens, targets, batch, length, 1.0);
    bytes = held_bytes - before;
  });
  return bytes;
}

TEST(HostActivations, AreWhatAStepLeavesAllocated) {
  const auto expect_close = [](const Gpt2Config& config, int batch, int length) {
    const auto estimate = static_cast<std::int64_t>(host_activation_bytes(config, 1, 0, {batch, length}, 1));
    (void)step_bytes(config, batch, length);  // the library of matrix products keeps a plan of each shape
    const std::int64_t real = step_bytes(config, batch, length);
    // Two numbers of each row are of one chunk of rows alone, and each buffer may be rounded up to a page.
    EXPECT_GE(real, estimate - 8 * batch * length) << estimate;
    EXPECT_LE(real, estimate + 4096 * (12 * config.layers + 40)) << estimate;
  };
  expect_close({2, 64, 4, 64, 1000}, 4, 64);
  expect_close({3, 96, 3, 128, 500}, 2, 128);
  expect_close({1, 32, 2, 512, 40000}, 2, 512);  // more logits than are in memory at once
}

TEST(HostActivations, ARankHasItsHeadsColumnsAndTokens) {
  const Gpt2Config config{2, 64, 4, 64, 1024};
  const BatchShape shape{4, 64};
  const std::uint64_t all = host_activation_bytes(config, 1, 0, shape, 1);
  const std::uint64_t half = host_activation_bytes(config, 2, 0, shape, 1);
  EXPECT_EQ(half, host_activation_bytes(config, 2, 1, shape, 1));
  // Of 4 rows x width by layer for the norms and the residual stream, and of four more, every rank has all.
  const std::uint64_t rows = 4 * 64;
  const std::uint64_t replicated = 4 * (rows * 64 * (2 * 4 + 1 + 4) + rows * (2 * 5 + 7));
  const std::uint64_t scratch = 4 * attention_scratch_elems({4, 64, 4, 16}, 1);
  const std::uint64_t scratch_of_half = 4 * attention_scratch_elems({4, 64, 2, 16}, 1);
  EXPECT_EQ(2 * (half - replicated - scratch_of_half), all - replicated - scratch);
}

}  // namespace
}  // namespace droptest::models
