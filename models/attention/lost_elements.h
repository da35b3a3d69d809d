// SPDX-License-Identifier: Apache-2.0
// Ranges of elements that a receiver lost and replaced by a fill, so that the sent values get no gradient.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "models/attention/absence.h"
#include "sim/packets/packetizer.h"

namespace droptest::models {

/// Ranges of elements in ascending order, with gaps between them, as Message::lost reports them.
using LostElements = std::vector<sim::ElementRange>;

/// Ranges of lost elements with the values that a fill gave them.
template <class T>
struct FilledElements {
  LostElements lost;
  std::vector<T> values;  ///< the values of all ranges, one range after the other
};

/// Saves the values of the elements filled.lost.
template <class T>
void save_values(std::span<const T> elems, FilledElements<T>& filled) {
  filled.values.clear();
  for (const sim::ElementRange& range : filled.lost) {
    filled.values.insert(filled.values.end(), elems.begin() + static_cast<std::ptrdiff_t>(range.begin),
                         elems.begin() + static_cast<std::ptrdiff_t>(range.end));
  }
}

/// Writes the saved values to the elements filled.lost.
template <class T>
void restore_values(const FilledElements<T>& filled, std::span<T> elems) {
  auto from = filled.values.begin();
  for (const sim::ElementRange& range : filled.lost) {
    const auto size = static_cast<std::ptrdiff_t>(range.size());
    std::copy_n(from, size, elems.begin() + static_cast<std::ptrdiff_t>(range.begin));
    from += size;
  }
}

/// Sets the elements of the ranges to zero.
template <class T>
void zero_lost(std::span<const sim::ElementRange> lost, std::span<T> elems) {
  for (const sim::ElementRange& range : lost) std::ranges::fill(elems.subspan(range.begin, range.size()), T(0));
}

/// The union of the two sets of elements.
inline LostElements united(LostElements some, std::span<const sim::ElementRange> others) {
  some.insert(some.end(), others.begin(), others.end());
  std::ranges::sort(some, {}, &sim::ElementRange::begin);
  LostElements all;
  for (const sim::ElementRange& range : some) {
    if (all.empty() || range.begin > all.back().end) {
      all.push_back(range);
    } else {
      all.back().end = std::max(all.back().end, range.end);
    }
  }
  return all;
}

/// The elements that a rank lost of the messages of Ulysses' exchange, in the order of the messages. Empty unless
/// Communicator::stops_lost_gradients().
struct AttentionLosses {
  LostElements queries;
  LostElements keys;    ///< empty if lost keys leave the softmax
  LostElements values;  ///< empty if lost values leave the softmax
  LostElements output;
};

/// The elements of a block of keys and values that were lost on this hop of a ring or on an earlier one. This rank
/// gives the owner of the block no gradient for these elements.
struct StoppedElements {
  LostElements keys;
  LostElements values;
};

/// The number of words of a block's flags: one bit for each element of the keys, then one for each element of the
/// values. 1 means stopped.
inline std::size_t stopped_words(std::uint64_t elems) { return 2 * ((elems + 63) / 64); }

/// The flags of a block with `elems` elements of keys and as many of values.
inline FlagWords packed_flags(const StoppedElements& stopped, std::uint64_t elems) {
  FlagWords words(stopped_words(elems));
  const auto mark = [](const LostElements& lost, std::span<std::uint64_t> to) {
    for (const sim::ElementRange& range : lost) {
      for (std::uint64_t i = range.begin; i < range.end;) {
        const std::uint64_t first = i % 64;
        const std::uint64_t count = std::min(range.end - i, 64 - first);
        to[i / 64] |= (~std::uint64_t{0} >> (64 - count)) << first;
        i += count;
      }
    }
  };
  mark(stopped.keys, std::span(words).first(words.size() / 2));
  mark(stopped.values, std::span(words).last(words.size() / 2));
  return words;
}

/// Adds the flagged elements to `stopped`.
inline void add_stopped(const FlagWords& words, StoppedElements& stopped) {
  const auto add = [](std::span<const std::uint64_t> from, LostElements& to) {
    LostElements flagged;
    for (std::size_t w = 0; w < from.size(); ++w) {
      const std::uint64_t begin = 64 * w;
      for (std::uint64_t word = from[w]; word != 0;) {
        const auto first = static_cast<std::uint64_t>(std::countr_zero(word));
        const auto count = static_cast<std::uint64_t>(std::countr_one(word >> first));
        flagged.push_back({begin + first, begin + first + count});
        if (first + count == 64) break;
        word &= ~std::uint64_t{0} << (first + count);
      }
    }
    to = united(std::move(to), flagged);
  };
  add(std::span(words).first(words.size() / 2), stopped.keys);
  add(std::span(words).last(words.size() / 2), stopped.values);
}

}  // namespace droptest::models
