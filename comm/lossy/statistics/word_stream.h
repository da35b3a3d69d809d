// SPDX-License-Identifier: Apache-2.0
// Counts and sums that travel between ranks.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "sim/error.h"

namespace droptest::comm {

/// Numbers as 64-bit words, which every backend carries unchanged.
class WordWriter {
 public:
  void put(std::uint64_t word) { words_.push_back(word); }
  void put_double(double number) { put(std::bit_cast<std::uint64_t>(number)); }
  const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  std::vector<std::uint64_t> words_;
};

/// Takes words back in order. Throws: CheckError past the end.
class WordReader {
 public:
  explicit WordReader(std::span<const std::uint64_t> words) : words_(words) {}
  std::uint64_t take() {
    DROPTEST_CHECK(next_ < words_.size(), "statistics end early");
    return words_[next_++];
  }
  double take_double() { return std::bit_cast<double>(take()); }

 private:
  std::span<const std::uint64_t> words_;
  std::size_t next_ = 0;
};

/// Each rank's words, in rank order. Ranks: all of the group.
std::vector<std::vector<std::uint64_t>> gather_words(Communicator& group, const std::vector<std::uint64_t>& words);

}  // namespace droptest::comm
