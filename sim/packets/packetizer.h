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

/// Cuts a message of count_elems elements, in order, into packets of payload_bytes; the last one may be short.
/// A bijection: each element is in exactly one packet, no packet is empty.
class Packetizer {
 public:
  /// Throws: ConfigError unless payload_bytes is a positive whole number of elements.
  Packetizer(std::uint64_t count_elems, std::uint64_t element_bytes, std::uint64_t payload_bytes);

  std::uint64_t packets() const { return packets_; }
  std::uint64_t count_elems() const { return count_elems_; }
  std::uint64_t elems_per_packet() const { return elems_per_packet_; }
  /// Elements of packet `packet` < packets().
  ElementRange elements(std::uint64_t packet) const;
  /// Packet that carries element `element` < count_elems().
  std::uint64_t packet_of(std::uint64_t element) const { return element / elems_per_packet_; }
  /// Payload bytes of packet `packet` < packets().
  std::uint64_t payload_bytes(std::uint64_t packet) const { return elements(packet).size() * element_bytes_; }

 private:
  std::uint64_t count_elems_;
  std::uint64_t element_bytes_;
  std::uint64_t elems_per_packet_;
  std::uint64_t packets_;
};

}  // namespace droptest::sim
