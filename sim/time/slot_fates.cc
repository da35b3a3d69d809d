// SPDX-License-Identifier: Apache-2.0
#include "sim/time/slot_fates.h"

#include <algorithm>
#include <bit>
#include <string>

#include "sim/error.h"

namespace droptest::sim {
namespace {

constexpr std::uint64_t kBlockSlots = 256;
constexpr std::uint64_t kWordSlots = 64;

}  // namespace

SlotFates::SlotFates(const LossProcess& process, std::uint64_t seed, const Link& link, std::uint64_t first_slot)
    : process_(process), seed_(seed), link_(link), first_slot_(first_slot) {}

void SlotFates::look() {
  if (++looks_ <= kMostLooks) return;
  throw ConfigError("retransmission: a message from rank " + std::to_string(link_.source) + " to rank " +
                    std::to_string(link_.destination) + " is still on its way after " + std::to_string(kMostLooks) +
                    " looks at the fates of its link, " + process_.describe() +
                    "; want a lower loss rate, shorter messages, or a protocol that sends lost packets alone "
                    "(selective_repeat)");
}

const PacketMask& SlotFates::block_at(std::uint64_t slot) {
  const std::uint64_t block = slot / kBlockSlots;
  if (mask_.size() == 0 || block != block_) {
    look();
    block_ = block;
    mask_.resize(kBlockSlots);
    process_.draw(seed_, link_, first_slot_ + block * kBlockSlots, mask_);
  }
  return mask_;
}

std::uint64_t SlotFates::lost_count(std::uint64_t slot, std::uint64_t count) {
  look();
  std::uint64_t lost = 0;
  for (const std::uint64_t end = slot + count; slot < end;) {
    const std::uint64_t word = block_at(slot).words()[slot % kBlockSlots / kWordSlots];
    const std::uint64_t taken = std::min(end - slot, kWordSlots - slot % kWordSlots);
    const std::uint64_t kept = taken == kWordSlots ? ~std::uint64_t{0} : (std::uint64_t{1} << taken) - 1;
    lost += static_cast<std::uint64_t>(std::popcount(word >> slot % kWordSlots & kept));
    slot += taken;
  }
  return lost;
}

std::uint64_t SlotFates::first_lost(std::uint64_t slot, std::uint64_t count) {
  look();
  const std::uint64_t end = slot + count;
  while (slot < end) {
    const std::uint64_t word = block_at(slot).words()[slot % kBlockSlots / kWordSlots] >> slot % kWordSlots;
    if (word != 0) return std::min(end, slot + static_cast<std::uint64_t>(std::countr_zero(word)));
    slot += kWordSlots - slot % kWordSlots;
  }
  return end;
}

}  // namespace droptest::sim
