// SPDX-License-Identifier: Apache-2.0
// Nouns: m packets, loss rate p, tau the slot, T the first timer, R the number of rounds.
#include <cmath>
#include <limits>

#include "sim/time/retransmission.h"
#include "sim/time/retransmission_rounds.h"
#include "sim/time/retransmission_times.h"

namespace droptest::sim {
namespace {

constexpr double kNegligible = 1e-17;

class Timeout final : public RetransmissionProtocol {
 public:
  explicit Timeout(double timeout_seconds) : timeout_seconds_(timeout_seconds) {}

  Delivery deliver(SlotFates& fates, std::uint64_t packets, const LinkTiming& timing) const override {
    return deliver_in_rounds(fates, packets, timing.slot_seconds, [this](std::uint64_t round) {
      return std::ldexp(timeout_seconds_, static_cast<int>(round) - 1);
    });
  }

  // Waits add up to T (2^(R-1) - 1), and 2^(R-1) - 1 is the sum of 2^(k-1) over 1 <= k < R, so
  // E = T sum over k >= 1 of 2^(k-1) P(R > k). For m = 1 that is T p / (1 - 2p). It exists for p < 1/2.
  double expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const override {
    if (packets == 0) return 0;
    if (p >= 0.5) return std::numeric_limits<double>::infinity();
    double waits = 0;
    for (std::uint64_t k = 1;; ++k) {
      const double term = std::ldexp(more_rounds_probability(p, packets, k), static_cast<int>(k) - 1);
      waits += term;
      if (term <= kNegligible * waits) break;
    }
    return static_cast<double>(packets) * timing.slot_seconds * p / (1 - p) + timeout_seconds_ * waits;
  }

 private:
  double timeout_seconds_;
};

}  // namespace

std::unique_ptr<RetransmissionProtocol> make_timeout(const Parameters& parameters) {
  parameters.allow_only({"protocol", "timeout_microseconds"});
  const std::optional<double> seconds = timeout_seconds(parameters);
  if (!seconds) parameters.member("timeout_microseconds");  // says that it is missing
  return std::make_unique<Timeout>(*seconds);
}

}  // namespace droptest::sim
