// SPDX-License-Identifier: Apache-2.0
// The calls of a kernel's running thread to the fake device; include/cuda_runtime.h gives them CUDA's names.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace droptest::fake_cuda {

// The indices of the running thread, set at each switch. Only one thread runs at a time in the whole process.
extern uint3 thread_index;
extern uint3 block_index;
extern dim3 block_size;
extern dim3 grid_size;

/// Returns when all living threads of the block have called it.
void sync_block();
/// Returns when all living threads of the warp have called it. The mask must be full.
void sync_warp(unsigned mask);

enum class Shuffle { kIndex, kXor, kDown };
/// Returns the bits that the named lane of the warp passed. The mask and the width must be those of a whole warp.
std::uint64_t shuffle_bits(Shuffle kind, unsigned mask, std::uint64_t bits, int operand, int width);

template <class T>
T shuffle(Shuffle kind, unsigned mask, T value, int operand, int width) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t), "shuffles move up to 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = shuffle_bits(kind, mask, bits, operand, width);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Ends the test if a tile does not meet the requirements of load_matrix_sync and store_matrix_sync: 256-bit aligned,
/// rows of a multiple of 16 bytes.
void check_tile(const void* tile, unsigned row_elems, std::size_t elem_bytes);

/// The dynamic shared memory of the running block, filled with NaN when the block starts.
unsigned char* dynamic_shared_memory();

}  // namespace droptest::fake_cuda
