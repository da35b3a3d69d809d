// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/fate_digest.h"

#include "sim/random/philox.h"

namespace droptest::sim {
namespace {

/// Philox as a mixer: a bijection of the counter (place and link) under the key (content), cut to 64 bits.
std::uint64_t mix(const Link& link, Purpose purpose, std::uint64_t place, std::uint64_t content) {
  const PhiloxCounter fields = link_counter(link, purpose, 0);
  const PhiloxBlock block = philox(
      content, {static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32), fields[2], fields[3]});
  return std::uint64_t{block[1]} << 32 | block[0];
}

}  // namespace

// The digest is a sum, so that words can be added as they are completed: of each word of 64 packets, aligned to the
// packet index, that has a loss, and of each range of consecutive packets (which covers the words without one).
void FateDigest::add(std::uint64_t first_packet, const PacketMask& lost) {
  if (lost.size() == 0) return;
  if (range_packets_ == 0 || first_packet != range_first_ + range_packets_) {
    sum_ = value();
    bits_ = 0;
    range_first_ = first_packet;
    range_packets_ = 0;
  }
  const unsigned offset = first_packet & 63;
  std::uint64_t word = first_packet >> 6;
  const std::uint64_t last_word = (first_packet + lost.size() - 1) >> 6;
  for (const std::uint64_t bits : lost.words()) {
    if (bits != 0) {
      add_bits(word, bits << offset);
      if (offset != 0 && word != last_word) add_bits((word + 1) << 6 >> 6, bits >> (64 - offset));
    }
    word = (word + 1) << 6 >> 6;  // packets are counted modulo 2^64
  }
  range_packets_ += lost.size();
  packets_ += lost.size();
}

void FateDigest::add_bits(std::uint64_t word, std::uint64_t bits) {
  if (bits == 0) return;
  if (word != word_) {
    sum_ += word_digest();
    word_ = word;
    bits_ = 0;
  }
  bits_ |= bits;
}

std::uint64_t FateDigest::word_digest() const {
  return bits_ == 0 ? 0 : mix(link_, Purpose::kDigestWord, word_, bits_);
}

std::uint64_t FateDigest::range_digest() const {
  return range_packets_ == 0 ? 0 : mix(link_, Purpose::kDigestRange, range_first_, range_packets_);
}

std::uint64_t FateDigest::value() const { return sum_ + word_digest() + range_digest(); }

}  // namespace droptest::sim
