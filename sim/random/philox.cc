// SPDX-License-Identifier: Apache-2.0
#include "sim/random/philox.h"

#include <Random123/philox.h>

#include <string>

#include "sim/error.h"

namespace droptest::sim {
namespace {

/// Purposes below this one draw along links, the others through PhiloxEngine: their counters have different fields.
constexpr std::uint16_t kFirstEnginePurpose = 16;

std::uint16_t purpose_value(Purpose purpose) { return static_cast<std::uint16_t>(purpose); }

}  // namespace

PhiloxBlock philox(std::uint64_t key, const PhiloxCounter& counter) {
  const philox4x32_ctr_t in = {{counter[0], counter[1], counter[2], counter[3]}};
  const philox4x32_key_t k = {{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}};
  const philox4x32_ctr_t out = philox4x32_R(10, in, k);
  return {out.v[0], out.v[1], out.v[2], out.v[3]};
}

PhiloxCounter link_counter(const Link& link, Purpose purpose, std::uint64_t packet_block) {
  DROPTEST_CHECK(purpose_value(purpose) < kFirstEnginePurpose,
                 "purpose " + std::to_string(purpose_value(purpose)) + " does not draw along links");
  // Packets are counted modulo 2^64, so blocks modulo 2^62: the block before packet 0 is that of the last packets.
  const std::uint64_t block = packet_block & ((std::uint64_t{1} << 62) - 1);
  return {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
          static_cast<std::uint32_t>(link.source) << 16 | link.destination,
          static_cast<std::uint32_t>(purpose_value(purpose)) << 16 | static_cast<std::uint32_t>(link.attempt) << 9 |
              static_cast<std::uint32_t>(link.half) << 8 | static_cast<std::uint32_t>(link.traffic_class)};
}

PhiloxEngine::PhiloxEngine(std::uint64_t seed, Purpose purpose, std::uint64_t stream)
    : seed_(seed), purpose_(purpose), stream_(stream) {
  DROPTEST_CHECK(purpose_value(purpose) >= kFirstEnginePurpose,
                 "purpose " + std::to_string(purpose_value(purpose)) + " draws along links only");
}

PhiloxEngine::result_type PhiloxEngine::operator()() {
  if (!block_valid_) {
    const std::uint64_t block = index_ / 4;
    block_ = philox(seed_, {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(stream_),
                            static_cast<std::uint32_t>(stream_ >> 32),
                            static_cast<std::uint32_t>(purpose_value(purpose_)) << 16 |
                                (static_cast<std::uint32_t>(block >> 32) & 0xffffU)});
    block_valid_ = true;
  }
  const result_type value = block_[index_ % 4];
  ++index_;
  if (index_ % 4 == 0) block_valid_ = false;
  return value;
}

void PhiloxEngine::seek(std::uint64_t index) {
  index_ = index;
  block_valid_ = false;
}

}  // namespace droptest::sim
