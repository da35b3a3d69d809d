// SPDX-License-Identifier: Apache-2.0
// Kernels on the double's streams: tests/fake_cuda runs their blocks, one kernel at a time, on the stream's thread.
#include <mutex>
#include <string>
#include <utility>

#include "tests/fake_cuda/block_runner.h"
#include "tests/fake_cuda/kernel_queue.h"
#include "tests/fake_nccl/fake_streams.h"

namespace droptest::fake_cuda {
namespace {

std::mutex one_kernel;

BlockRunner& runner() {
  static BlockRunner blocks;
  return blocks;
}

}  // namespace

cudaError_t queue_kernel(std::string_view name, std::uint64_t blocks, unsigned threads, std::size_t shared_bytes,
                         cudaStream_t stream, std::function<void()> thread) {
  Kernel kernel{std::string(name), blocks, threads, shared_bytes, std::move(thread)};
  fake_nccl::stream_of(stream)->put([kernel = std::move(kernel)] {
    const std::lock_guard<std::mutex> lock(one_kernel);
    runner().run(kernel, Settings{});
  });
  return cudaSuccess;
}

Order default_order() { return Order::kAscending; }

void sync_block() { runner().sync_block(); }
void sync_warp(unsigned mask) { runner().sync_warp(mask); }
std::uint64_t shuffle_bits(Shuffle kind, unsigned mask, std::uint64_t bits, int operand, int width) {
  return runner().shuffle(kind, mask, bits, operand, width);
}
unsigned char* dynamic_shared_memory() { return runner().shared_memory(); }
void check_tile(const void* /*tile*/, unsigned /*row_elems*/, std::size_t /*elem_bytes*/) {}

}  // namespace droptest::fake_cuda
