// SPDX-License-Identifier: Apache-2.0
// Nouns: m packets, loss rate p, tau the slot, D the wait after a round: the round trip, or the timeout.
#include <optional>

#include "sim/time/retransmission.h"
#include "sim/time/retransmission_rounds.h"
#include "sim/time/retransmission_times.h"

namespace droptest::sim {
namespace {

class SelectiveRepeat final : public RetransmissionProtocol {
 public:
  explicit SelectiveRepeat(std::optional<double> timeout_seconds) : timeout_seconds_(timeout_seconds) {}

  Delivery deliver(SlotFates& fates, std::uint64_t packets, const LinkTiming& timing) const override {
    const double wait = wait_seconds(timing);
    return deliver_in_rounds(fates, packets, timing.slot_seconds, [wait](std::uint64_t) { return wait; });
  }

  // E[T] = m tau / (1 - p) + (E[R] - 1) D: each packet is sent a geometric number of times.
  double expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const override {
    if (packets == 0) return 0;
    const auto m = static_cast<double>(packets);
    return m * timing.slot_seconds * p / (1 - p) + (expected_rounds(p, packets) - 1) * wait_seconds(timing);
  }

 private:
  double wait_seconds(const LinkTiming& timing) const { return timeout_seconds_.value_or(timing.round_trip_seconds); }

  std::optional<double> timeout_seconds_;
};

}  // namespace

std::unique_ptr<RetransmissionProtocol> make_selective_repeat(const Parameters& parameters) {
  parameters.allow_only({"protocol", "timeout_microseconds"});
  return std::make_unique<SelectiveRepeat>(timeout_seconds(parameters));
}

}  // namespace droptest::sim
