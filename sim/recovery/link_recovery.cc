// SPDX-License-Identifier: Apache-2.0
#include "sim/recovery/link_recovery.h"

#include <bit>

namespace droptest::sim {
namespace {

// Each attempt has other places of the link. Otherwise a process without draws of each attempt (a trace, a pattern)
// would lose the same packets for ever.
constexpr std::uint64_t kAttemptStride = 1000003;

// After this many slots, minutes later, repetitions begin again at their message's first place, as if the link had
// forgotten. So they never reach the places of another message, which may begin 2^32 later.
constexpr std::uint64_t kSlotsOfMessage = std::uint64_t{1} << 31U;

}  // namespace

LinkRecovery::DrawAgain draws_by_attempt(const LossProcess& process, std::uint64_t seed, const Link& link,
                                         std::uint64_t first_packet) {
  return [&process, seed, link, first_packet](const Attempt& attempt, std::uint64_t first_data, PacketMask& lost) {
    Link again = link;
    again.attempt = static_cast<std::uint8_t>(1 + (attempt.number - 1) % Link::kMostAttempts);
    process.draw(seed, again, first_packet + first_data + attempt.number * kAttemptStride, lost);
  };
}

LinkRecovery::DrawAgain draws_by_slot(const LossProcess& process, std::uint64_t seed, const Link& link,
                                      const MessagePosition& place) {
  return [&process, seed, link, place](const Attempt& attempt, std::uint64_t first_data, PacketMask& lost) {
    MessagePosition later = place;
    later.first_packet += (attempt.slot + first_data) % kSlotsOfMessage;
    if (later.times.has_value()) later.times->slot += attempt.slot + first_data;
    process.draw_message(seed, link, later, lost);
  };
}

std::uint64_t first_lost(const PacketMask& mask) {
  const auto words = mask.words();
  for (std::size_t w = 0; w < words.size(); ++w) {
    if (words[w] != 0) return 64 * w + static_cast<std::uint64_t>(std::countr_zero(words[w]));
  }
  return mask.size();
}

}  // namespace droptest::sim
