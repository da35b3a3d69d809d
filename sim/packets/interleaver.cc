// SPDX-License-Identifier: Apache-2.0
#include "sim/packets/interleaver.h"

#include <algorithm>
#include <string>

#include "sim/error.h"

namespace droptest::sim {
namespace {

// Copies message[i] to sent[place(i)], or back: `sent` is walked in order, the message by residues.
template <class Word, bool kSpread>
void permute(const Word* from, Word* to, std::uint64_t count, std::uint64_t stride) {
  std::uint64_t next = 0;
  for (std::uint64_t residue = 0; residue < stride; ++residue) {
    for (std::uint64_t i = residue; i < count; i += stride, ++next) {
      if constexpr (kSpread) {
        to[next] = from[i];
      } else {
        to[i] = from[next];
      }
    }
  }
}

}  // namespace

Interleaver::Interleaver(std::uint64_t stride_packets, std::uint64_t elems_per_packet)
    : stride_packets_(stride_packets), elems_per_packet_(elems_per_packet) {
  if (stride_packets == 0) throw ConfigError("interleave: got 0, want at least 1");
  DROPTEST_CHECK(elems_per_packet > 0, "elems_per_packet is 0");
}

std::uint64_t Interleaver::packets_of_group(std::uint64_t group_elems) const {
  return (group_elems + elems_per_packet_ - 1) / elems_per_packet_;
}

std::uint64_t Interleaver::place(std::uint64_t element, std::uint64_t count_elems) const {
  const std::uint64_t group = stride_packets_ * elems_per_packet_;
  const std::uint64_t begin = element / group * group;
  const std::uint64_t size = std::min(group, count_elems - begin);
  const std::uint64_t stride = packets_of_group(size);
  const std::uint64_t residue = (element - begin) % stride;
  // Residue classes before this one: the first size % stride of them have one element more.
  return begin + residue * (size / stride) + std::min(residue, size % stride) + (element - begin) / stride;
}

template <bool kSpread>
static void copy_groups(std::span<const std::byte> from, std::span<std::byte> to, std::size_t element_bytes,
                        std::uint64_t group_elems, std::uint64_t elems_per_packet) {
  DROPTEST_CHECK(from.size() == to.size() && from.size() % element_bytes == 0,
                 std::to_string(from.size()) + " and " + std::to_string(to.size()) + " bytes");
  const std::uint64_t count = from.size() / element_bytes;
  for (std::uint64_t begin = 0; begin < count; begin += group_elems) {
    const std::uint64_t size = std::min(group_elems, count - begin);
    const std::uint64_t stride = (size + elems_per_packet - 1) / elems_per_packet;
    const std::byte* source = from.data() + begin * element_bytes;
    std::byte* target = to.data() + begin * element_bytes;
    if (element_bytes == 2) {
      permute<std::uint16_t, kSpread>(reinterpret_cast<const std::uint16_t*>(source),
                                      reinterpret_cast<std::uint16_t*>(target), size, stride);
    } else if (element_bytes == 4) {
      permute<std::uint32_t, kSpread>(reinterpret_cast<const std::uint32_t*>(source),
                                      reinterpret_cast<std::uint32_t*>(target), size, stride);
    } else {
      DROPTEST_CHECK(element_bytes == 8, "elements of " + std::to_string(element_bytes) + " bytes");
      permute<std::uint64_t, kSpread>(reinterpret_cast<const std::uint64_t*>(source),
                                      reinterpret_cast<std::uint64_t*>(target), size, stride);
    }
  }
}

void Interleaver::spread(std::span<const std::byte> message, std::span<std::byte> sent,
                         std::size_t element_bytes) const {
  copy_groups<true>(message, sent, element_bytes, stride_packets_ * elems_per_packet_, elems_per_packet_);
}

void Interleaver::gather(std::span<const std::byte> sent, std::span<std::byte> message,
                         std::size_t element_bytes) const {
  copy_groups<false>(sent, message, element_bytes, stride_packets_ * elems_per_packet_, elems_per_packet_);
}

}  // namespace droptest::sim
