// SPDX-License-Identifier: Apache-2.0
// One bit per packet: set if the packet is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace droptest::sim {

/// The fates of consecutive packets. Bits past size() in the last word are always clear.
class PacketMask {
 public:
  PacketMask() = default;
  /// Makes a mask in which all packets are delivered.
  explicit PacketMask(std::uint64_t packets) { resize(packets); }

  /// Sets the number of packets; all are delivered afterwards. Keeps its memory, so that a mask can be used again.
  void resize(std::uint64_t packets);

  std::uint64_t size() const { return size_; }
  bool lost(std::uint64_t packet) const { return (words_[packet >> 6] >> (packet & 63)) & 1U; }
  void set_lost(std::uint64_t packet) { words_[packet >> 6] |= std::uint64_t{1} << (packet & 63); }

  /// Number of lost packets.
  std::uint64_t lost_count() const;
  bool any_lost() const;

  /// Bit i of word w is packet 64 w + i. Writers must leave the bits past size() clear.
  std::span<const std::uint64_t> words() const { return words_; }
  std::span<std::uint64_t> words() { return words_; }

  friend bool operator==(const PacketMask&, const PacketMask&) = default;

 private:
  std::uint64_t size_ = 0;
  std::vector<std::uint64_t> words_;
};

/// The fates of consecutive packets in borrowed words, laid out as in PacketMask::words().
struct FatesView {
  FatesView(const PacketMask& mask) : words(mask.words()), packets(mask.size()) {}
  FatesView(std::span<const std::uint64_t> w, std::uint64_t p) : words(w), packets(p) {}

  std::span<const std::uint64_t> words;
  std::uint64_t packets;
};

}  // namespace droptest::sim
