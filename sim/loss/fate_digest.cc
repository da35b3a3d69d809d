// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/fate_digest.h"

#include <array>
#include <cstddef>
#include <span>

#include "sim/random/draw_words.h"

namespace droptest::sim {
namespace {

std::uint64_t mix(const Link& link, Purpose purpose, std::uint64_t place, std::uint64_t content) {
  return sum_of_mixed(link, purpose, {&place, 1}, {&content, 1});
}

// Complete words, mixed several at a time.
class Words {
 public:
  explicit Words(const Link& link) : link_(link) {}

  // Words without a loss have no digest. No processor can predict which words those are.
  void add(std::uint64_t word, std::uint64_t bits) {
    if (number_ == places_.size()) mix_all();
    places_[number_] = word;
    contents_[number_] = bits;
    number_ += bits == 0 ? 0 : 1;
  }
  std::uint64_t sum() {
    mix_all();
    return sum_;
  }

 private:
  void mix_all() {
    if (number_ == 0) return;
    sum_ += sum_of_mixed(link_, Purpose::kDigestWord, std::span(places_).first(number_),
                         std::span(contents_).first(number_));
    number_ = 0;
  }

  const Link& link_;
  std::array<std::uint64_t, 32> places_;
  std::array<std::uint64_t, 32> contents_;
  std::size_t number_ = 0;
  std::uint64_t sum_ = 0;
};

}  // namespace

// The digest is a sum, so that words can be added as they are completed. Its terms are each word of 64 packets, aligned
// to the packet index, that has a loss, and each range of consecutive packets (which covers the words without a loss).
void FateDigest::add(std::uint64_t first_packet, const FatesView& lost) {
  if (lost.packets == 0) return;
  if (range_packets_ == 0 || first_packet != range_first_ + range_packets_) {
    sum_ = value();
    bits_ = 0;
    range_first_ = first_packet;
    range_packets_ = 0;
  }
  const unsigned offset = first_packet & 63;
  const std::uint64_t first_word = first_packet >> 6;
  Words complete(link_);
  // A word may have come in part with the range before.
  std::uint64_t bits = 0;
  if (first_word == word_) {
    bits = bits_;
  } else {
    complete.add(word_, bits_);
  }
  word_ = first_word;
  std::uint64_t left = lost.packets + offset;
  for (const std::uint64_t fates : lost.words) {
    bits |= fates << offset;
    if (left <= 64) break;
    complete.add(word_, bits);
    word_ = (word_ + 1) << 6 >> 6;  // packets are counted modulo 2^64
    bits = fates >> 1 >> (63 - offset);
    left -= 64;
  }
  bits_ = bits;
  sum_ += complete.sum();
  range_packets_ += lost.packets;
}

void FateDigest::add_apart(std::uint64_t first_packet, const FatesView& lost) {
  FateDigest range(link_);
  range.add(first_packet, lost);
  sum_ += range.value();
}

std::uint64_t FateDigest::word_digest() const {
  return bits_ == 0 ? 0 : mix(link_, Purpose::kDigestWord, word_, bits_);
}

std::uint64_t FateDigest::range_digest() const {
  return range_packets_ == 0 ? 0 : mix(link_, Purpose::kDigestRange, range_first_, range_packets_);
}

std::uint64_t FateDigest::value() const { return sum_ + word_digest() + range_digest(); }

}  // namespace droptest::sim
