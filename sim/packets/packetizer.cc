// SPDX-License-Identifier: Apache-2.0
#include "sim/packets/packetizer.h"

#include <algorithm>
#include <string>

#include "sim/error.h"

namespace droptest::sim {

Packetizer::Packetizer(std::uint64_t count_elems, std::uint64_t element_bytes, std::uint64_t payload_bytes)
    : count_elems_(count_elems), element_bytes_(element_bytes) {
  DROPTEST_CHECK(element_bytes > 0, "element_bytes is 0");
  if (payload_bytes == 0 || payload_bytes % element_bytes != 0) {
    throw ConfigError("payload_bytes: got " + std::to_string(payload_bytes) + ", want a positive multiple of " +
                      std::to_string(element_bytes) + " (the bytes of an element)");
  }
  elems_per_packet_ = payload_bytes / element_bytes;
  packets_ = count_elems / elems_per_packet_ + (count_elems % elems_per_packet_ != 0 ? 1 : 0);
}

ElementRange Packetizer::elements(std::uint64_t packet) const {
  DROPTEST_CHECK(packet < packets_, "packet " + std::to_string(packet) + " of " + std::to_string(packets_));
  const std::uint64_t begin = packet * elems_per_packet_;
  return {begin, begin + std::min(elems_per_packet_, count_elems_ - begin)};
}

}  // namespace droptest::sim
