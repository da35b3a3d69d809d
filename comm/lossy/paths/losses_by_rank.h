// SPDX-License-Identifier: Apache-2.0
// The packets of each rank's message that this rank lost, for others to read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/loss/packet_mask.h"

namespace droptest::comm {

/// The masks of a group's messages, one after the other in reused memory.
class LossesByRank {
 public:
  /// Starts with nothing lost, for messages of at most `most_packets` packets.
  void start(int ranks, std::uint64_t most_packets) {
    words_of_each_ = static_cast<std::size_t>((most_packets + 63) / 64);
    words_.assign(static_cast<std::size_t>(ranks) * words_of_each_, 0);
  }
  /// Takes a copy of the losses of a rank's message; null: all arrived.
  void set(int rank, const sim::PacketMask* lost) {
    if (lost != nullptr) std::ranges::copy(lost->words(), &words_[static_cast<std::size_t>(rank) * words_of_each_]);
  }

  /// A view of the words for other ranks. Other ranks read the view instead of this object, which saves one cache miss.
  class View {
   public:
    View() = default;
    explicit View(const LossesByRank& losses) : words_(losses.words_.data()), words_of_each_(losses.words_of_each_) {}
    /// Bit i of word w is packet 64 w + i of the rank's message, as in a PacketMask.
    std::span<const std::uint64_t> of(int rank) const {
      return {words_ + static_cast<std::size_t>(rank) * words_of_each_, words_of_each_};
    }

   private:
    const std::uint64_t* words_ = nullptr;
    std::size_t words_of_each_ = 0;
  };

 private:
  std::vector<std::uint64_t> words_;
  std::size_t words_of_each_ = 0;
};

}  // namespace droptest::comm
