// SPDX-License-Identifier: Apache-2.0
#include "sim/packets/packetizer.h"

#include <algorithm>
#include <string>

#include "sim/error.h"

namespace droptest::sim {

std::uint64_t ElementCoding::bytes(std::uint64_t count_elems) const {
  const std::uint64_t blocks = count_elems / block_elems;
  const std::uint64_t rest = count_elems % block_elems;
  constexpr std::uint64_t kBitsPerByte = 8;
  const auto bytes_of_block = [this](std::uint64_t elems) {
    return header_bytes + (elems * element_bits + kBitsPerByte - 1) / kBitsPerByte;
  };
  return blocks * bytes_of_block(block_elems) + (rest > 0 ? bytes_of_block(rest) : 0);
}

Packetizer::Packetizer(std::uint64_t count_elems, std::uint64_t element_bytes, std::uint64_t payload_bytes)
    : count_elems_(count_elems),
      coding_(ElementCoding::plain(element_bytes)),
      content_bytes_(count_elems * element_bytes) {
  DROPTEST_CHECK(element_bytes > 0, "element_bytes is 0");
  if (payload_bytes == 0 || payload_bytes % element_bytes != 0) {
    throw ConfigError("payload_bytes: got " + std::to_string(payload_bytes) + ", want a positive multiple of " +
                      std::to_string(element_bytes) + " (the bytes of an element)");
  }
  elems_per_packet_ = payload_bytes / element_bytes;
  packets_ = count_elems / elems_per_packet_ + (count_elems % elems_per_packet_ != 0 ? 1 : 0);
}

Packetizer::Packetizer(std::uint64_t count_elems, const ElementCoding& coding, std::uint64_t payload_bytes,
                       std::uint64_t content_bytes)
    : count_elems_(count_elems), coding_(coding), content_bytes_(content_bytes) {
  const std::uint64_t block_bytes = coding.bytes(coding.block_elems);
  if (payload_bytes < block_bytes) {
    throw ConfigError("payload_bytes: got " + std::to_string(payload_bytes) + ", want at least " +
                      std::to_string(block_bytes) + " (the bytes of a block of the compression)");
  }
  elems_per_packet_ = payload_bytes / block_bytes * coding.block_elems;
  packets_ = count_elems / elems_per_packet_ + (count_elems % elems_per_packet_ != 0 ? 1 : 0);
}

ElementRange Packetizer::elements(std::uint64_t packet) const {
  DROPTEST_CHECK(packet < packets_, "packet " + std::to_string(packet) + " of " + std::to_string(packets_));
  const std::uint64_t begin = packet * elems_per_packet_;
  return {begin, begin + std::min(elems_per_packet_, count_elems_ - begin)};
}

}  // namespace droptest::sim
