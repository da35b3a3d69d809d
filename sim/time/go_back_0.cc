// SPDX-License-Identifier: Apache-2.0
// Nouns: m packets, s = 1 - p the chance that a packet arrives, W slots from a lost packet to the new start.
#include <algorithm>
#include <cmath>
#include <optional>

#include "sim/time/retransmission.h"
#include "sim/time/retransmission_times.h"

namespace droptest::sim {
namespace {

class GoBack0 final : public RetransmissionProtocol {
 public:
  explicit GoBack0(std::optional<std::uint64_t> window) : window_(window) {}

  Delivery deliver(SlotFates& fates, std::uint64_t packets, const LinkTiming& timing) const override {
    const std::uint64_t window = window_slots(window_, timing);
    Delivery delivery;
    std::uint64_t slot = 0;
    while (true) {
      const std::uint64_t lost_at = fates.first_lost(slot, packets);
      if (lost_at == slot + packets) break;
      delivery.packets_sent += std::min(packets, lost_at - slot + window);
      slot = lost_at + window;
      ++delivery.timeouts;
    }
    delivery.slots = slot + packets;
    delivery.slots_passed = delivery.slots;
    delivery.packets_sent += packets;
    return delivery;
  }

  double expected_tries(const LossProcess& process, std::uint64_t packets) const override {
    return 1 / process.all_arrive_probability(std::max(packets, std::uint64_t{1}));
  }

  // Slots until a run of m deliveries, E = (1 - s^m) / (p s^m), if the new start follows the loss at once (W = 1); the
  // (1 - s^m) / s^m failed tries cost W - 1 slots more each. Feller, vol. 1, XIII.7.
  double expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const override {
    if (p == 0 || packets == 0) return 0;
    const auto m = static_cast<double>(packets);
    const double failures = std::expm1(-m * std::log1p(-p));  // s^-m - 1
    const auto window = static_cast<double>(window_slots(window_, timing));
    return (failures / p + failures * (window - 1) - m) * timing.slot_seconds;
  }

 private:
  std::optional<std::uint64_t> window_;
};

}  // namespace

std::unique_ptr<RetransmissionProtocol> make_go_back_0(const Parameters& parameters) {
  parameters.allow_only({"protocol", "window_packets"});
  return std::make_unique<GoBack0>(window_packets(parameters));
}

}  // namespace droptest::sim
