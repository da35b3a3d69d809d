// SPDX-License-Identifier: Apache-2.0
// Nouns: m packets, loss rate p, W slots from a lost packet to its repetition. What the W - 1 slots between carry is
// out of order at the receiver, which throws it away.
#include <algorithm>
#include <optional>

#include "sim/time/retransmission.h"
#include "sim/time/retransmission_times.h"

namespace droptest::sim {
namespace {

class GoBackN final : public RetransmissionProtocol {
 public:
  explicit GoBackN(std::optional<std::uint64_t> window) : window_(window) {}

  Delivery deliver(SlotFates& fates, std::uint64_t packets, const LinkTiming& timing) const override {
    const std::uint64_t window = window_slots(window_, timing);
    Delivery delivery;
    std::uint64_t slot = 0;
    for (std::uint64_t missing = packets; missing > 0;) {
      const std::uint64_t lost_at = fates.first_lost(slot, missing);
      missing -= lost_at - slot;
      slot = lost_at;
      if (missing == 0) break;
      slot += window;
      // Of the packets still missing, those that fit the window have been sent in vain.
      delivery.packets_sent += std::min(window, missing);
      ++delivery.timeouts;
    }
    delivery.slots = slot;
    delivery.slots_passed = slot;
    delivery.packets_sent += packets;
    return delivery;
  }

  // Each packet fails p / (1 - p) times, and each failure costs W slots: E[slots] = m (1 + p W / (1 - p)).
  double expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const override {
    const auto window = static_cast<double>(window_slots(window_, timing));
    return static_cast<double>(packets) * p * window / (1 - p) * timing.slot_seconds;
  }

 private:
  std::optional<std::uint64_t> window_;
};

}  // namespace

std::unique_ptr<RetransmissionProtocol> make_go_back_n(const Parameters& parameters) {
  parameters.allow_only({"protocol", "window_packets"});
  return std::make_unique<GoBackN>(window_packets(parameters));
}

}  // namespace droptest::sim
