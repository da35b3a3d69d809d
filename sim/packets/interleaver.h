// SPDX-License-Identifier: Apache-2.0
// The order in which a message's elements go into packets, so that a lost packet's elements lie apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace droptest::sim {

/// A message is handled in groups of `stride` packets' worth of elements (the last group may be smaller). Within a
/// group of s packets the elements 0, s, 2 s, ... go first, then 1, s + 1, ...: packet q has every s-th element from
/// the q-th on. So a lost packet takes one element out of every s, and neighbouring packets take neighbouring elements.
/// A bijection for every length; the identity for a stride of 1 and for messages of one packet.
/// Source: block interleaving, e.g. Perkins, Hodson and Hardman, IEEE Network 12 (1998), section "Interleaving".
class Interleaver {
 public:
  /// Throws: ConfigError for a stride of 0.
  Interleaver(std::uint64_t stride_packets, std::uint64_t elems_per_packet);

  /// Place of element `element` of a message of count_elems in the message as it is sent.
  std::uint64_t place(std::uint64_t element, std::uint64_t count_elems) const;

  /// Copies a message with elements of element_bytes into the order in which it is sent, or back out of it. The ranges
  /// have equal sizes, a whole number of elements, and do not overlap.
  void spread(std::span<const std::byte> message, std::span<std::byte> sent, std::size_t element_bytes) const;
  void gather(std::span<const std::byte> sent, std::span<std::byte> message, std::size_t element_bytes) const;

 private:
  std::uint64_t packets_of_group(std::uint64_t group_elems) const;

  std::uint64_t stride_packets_;
  std::uint64_t elems_per_packet_;
};

}  // namespace droptest::sim
