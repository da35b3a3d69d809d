// SPDX-License-Identifier: Apache-2.0
// Elements <-> packets: the one function that says which elements a packet carries.
#pragma once

#include <cstdint>

namespace droptest::sim {

/// Half-open range of elements.
struct ElementRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

/// The bytes of elements on the wire. Blocks of elements share a header; the last block of a message may be short.
/// Elements that travel as they are in memory are blocks of one element without a header.
struct ElementCoding {
  std::uint64_t block_elems = 1;
  std::uint64_t header_bytes = 0;  ///< header bytes of each block
  std::uint64_t element_bits = 32;

  static ElementCoding plain(std::uint64_t element_bytes) { return {1, 0, 8 * element_bytes}; }
  /// Bytes of `count_elems` elements that begin with a block.
  std::uint64_t bytes(std::uint64_t count_elems) const;
  friend bool operator==(const ElementCoding&, const ElementCoding&) = default;
};

/// Cuts a message of count_elems elements, in order, into packets of at most payload_bytes; the last one may be short.
/// A packet has whole blocks of the coding. A bijection: each element is in exactly one packet, no packet is empty.
class Packetizer {
 public:
  /// Throws: ConfigError unless payload_bytes is a positive whole number of elements.
  Packetizer(std::uint64_t count_elems, std::uint64_t element_bytes, std::uint64_t payload_bytes);
  /// Cuts a message of coded elements, which stand for `content_bytes` bytes of a tensor. Throws: ConfigError if a
  /// packet has no room for a block.
  Packetizer(std::uint64_t count_elems, const ElementCoding& coding, std::uint64_t payload_bytes,
             std::uint64_t content_bytes);

  std::uint64_t packets() const { return packets_; }
  std::uint64_t count_elems() const { return count_elems_; }
  std::uint64_t elems_per_packet() const { return elems_per_packet_; }
  /// Elements of packet `packet` < packets().
  ElementRange elements(std::uint64_t packet) const;
  /// Packet that carries element `element` < count_elems().
  std::uint64_t packet_of(std::uint64_t element) const { return element / elems_per_packet_; }
  /// Payload bytes of packet `packet` < packets().
  std::uint64_t payload_bytes(std::uint64_t packet) const { return coding_.bytes(elements(packet).size()); }
  /// Payload bytes of all packets.
  std::uint64_t bytes() const { return coding_.bytes(count_elems_); }
  /// Bytes of the tensor elements that the message carries or stands for.
  std::uint64_t content_bytes() const { return content_bytes_; }

 private:
  std::uint64_t count_elems_;
  ElementCoding coding_;
  std::uint64_t content_bytes_;
  std::uint64_t elems_per_packet_;
  std::uint64_t packets_;
};

}  // namespace droptest::sim
