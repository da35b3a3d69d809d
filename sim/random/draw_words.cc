// SPDX-License-Identifier: Apache-2.0
#include "sim/random/draw_words.h"

#include <algorithm>
#include <string>

#include "sim/error.h"
#include "sim/random/draw_kernels.h"
#include "sim/random/threshold.h"

namespace droptest::sim {
namespace {

const DrawKernels& fastest() {
  static const DrawKernels& kFastest = usable_draw_kernels().back();
  return kFastest;
}

/// A threshold in [1, 2^32] as the largest 32-bit draw below it: the compare then needs 32 bits only.
std::uint32_t largest_below(std::uint64_t threshold) { return static_cast<std::uint32_t>(threshold - 1); }

DrawStream stream_of(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first_word) {
  return {seed, link_counter(link, purpose, 0), first_word};
}

/// Thresholds that need no draw: never and always.
bool is_certain(std::uint64_t threshold) {
  DROPTEST_CHECK(threshold <= kCertain, "threshold " + std::to_string(threshold));
  return threshold == 0 || threshold == kCertain;
}
void fill_certain(std::uint64_t threshold, std::span<std::uint64_t> below) {
  std::fill(below.begin(), below.end(), threshold == 0 ? 0 : ~std::uint64_t{0});
}

}  // namespace

void draws_below(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first_word,
                 std::uint64_t threshold, std::span<std::uint64_t> below) {
  if (is_certain(threshold)) return fill_certain(threshold, below);
  const DrawStream stream = stream_of(seed, link, purpose, first_word);
  fastest().one(stream, largest_below(threshold), below);
}

void draws_below(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first_word,
                 std::uint64_t threshold_a, std::span<std::uint64_t> below_a, std::uint64_t threshold_b,
                 std::span<std::uint64_t> below_b) {
  DROPTEST_CHECK(below_a.size() == below_b.size(),
                 std::to_string(below_a.size()) + " and " + std::to_string(below_b.size()) + " words");
  if (is_certain(threshold_a) || is_certain(threshold_b)) {
    draws_below(seed, link, purpose, first_word, threshold_a, below_a);
    draws_below(seed, link, purpose, first_word, threshold_b, below_b);
    return;
  }
  const DrawStream stream = stream_of(seed, link, purpose, first_word);
  fastest().two(stream, largest_below(threshold_a), below_a.data(), largest_below(threshold_b), below_b);
}

std::uint64_t sum_of_mixed(const Link& link, Purpose purpose, std::span<const std::uint64_t> places,
                           std::span<const std::uint64_t> contents) {
  DROPTEST_CHECK(places.size() == contents.size(),
                 std::to_string(places.size()) + " places, " + std::to_string(contents.size()) + " contents");
  return fastest().mixed(link_counter(link, purpose, 0), places, contents);
}

std::array<std::uint32_t, 64> draw_values(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t word) {
  std::array<std::uint32_t, 64> values;
  fastest().values(stream_of(seed, link, purpose, word), values);
  return values;
}

}  // namespace droptest::sim
