// SPDX-License-Identifier: Apache-2.0
#include "sim/recovery/hadamard.h"

#include <bit>
#include <cmath>
#include <string>

#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest::sim {
namespace {

// One level of the transform: the halves of each 2 * half elements become their sum and difference.
template <class T>
void butterflies(T* block, std::uint64_t size, std::uint64_t half) {
  for (std::uint64_t begin = 0; begin < size; begin += 2 * half) {
    T* low = block + begin;
    T* high = low + half;
    for (std::uint64_t i = 0; i < half; ++i) {
      const T a = low[i];
      const T b = high[i];
      low[i] = a + b;
      high[i] = a - b;
    }
  }
}

// Levels of small halves run over one stretch at a time, so that a large block is not read from memory for each.
template <class T>
void hadamard(std::span<T> block) {
  constexpr std::uint64_t kStretch = 4096;
  const std::uint64_t size = block.size();
  const std::uint64_t stretch = std::min(size, kStretch);
  for (std::uint64_t begin = 0; begin < size; begin += stretch) {
    for (std::uint64_t half = 1; half < stretch; half *= 2) butterflies(block.data() + begin, stretch, half);
  }
  for (std::uint64_t half = stretch; half < size; half *= 2) butterflies(block.data(), size, half);
}

// Calls f(begin, size) for each block of a message.
template <class F>
void for_each_block(std::uint64_t count, std::uint64_t block_elems, const F& f) {
  std::uint64_t begin = 0;
  for (; count - begin >= block_elems; begin += block_elems) f(begin, block_elems);
  while (begin < count) {
    const std::uint64_t size = std::bit_floor(count - begin);
    f(begin, size);
    begin += size;
  }
}

}  // namespace

RandomisedHadamard::RandomisedHadamard(std::uint64_t seed, std::uint64_t stream, std::uint64_t block_elems)
    : seed_(seed), stream_(stream), block_elems_(block_elems) {
  if (std::has_single_bit(block_elems) && block_elems >= 2 && block_elems <= kMostBlock) return;
  throw ConfigError("block: got " + std::to_string(block_elems) + ", want a power of two in [2, " +
                    std::to_string(kMostBlock) + "]");
}

// One bit of a draw per position; a longer message's signs begin with a shorter one's.
void RandomisedHadamard::draw_signs(std::uint64_t count) {
  if (signs_.size() >= count) return;
  PhiloxEngine engine(seed_, Purpose::kHadamardSigns, stream_);
  engine.seek(signs_.size() / 32);
  while (signs_.size() < count) {
    const std::uint32_t bits = engine();
    for (int bit = 0; bit < 32; ++bit) signs_.push_back((bits >> bit & 1) != 0 ? -1.0F : 1.0F);
  }
}

template <class T>
void RandomisedHadamard::forward(std::span<T> values) {
  draw_signs(values.size());
  for_each_block(values.size(), block_elems_, [&](std::uint64_t begin, std::uint64_t size) {
    const std::span<T> block = values.subspan(begin, size);
    const T factor = static_cast<T>(1 / std::sqrt(static_cast<double>(size)));
    for (std::uint64_t i = 0; i < size; ++i) block[i] *= factor * static_cast<T>(signs_[begin + i]);
    hadamard(block);
  });
}

template <class T>
void RandomisedHadamard::inverse(std::span<T> values) {
  draw_signs(values.size());
  for_each_block(values.size(), block_elems_, [&](std::uint64_t begin, std::uint64_t size) {
    const std::span<T> block = values.subspan(begin, size);
    hadamard(block);
    const T factor = static_cast<T>(1 / std::sqrt(static_cast<double>(size)));
    for (std::uint64_t i = 0; i < size; ++i) block[i] *= factor * static_cast<T>(signs_[begin + i]);
  });
}

template void RandomisedHadamard::forward(std::span<float>);
template void RandomisedHadamard::forward(std::span<double>);
template void RandomisedHadamard::inverse(std::span<float>);
template void RandomisedHadamard::inverse(std::span<double>);

}  // namespace droptest::sim
