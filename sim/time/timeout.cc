// SPDX-License-Identifier: Apache-2.0
// Nouns: m packets, loss rate p, tau the slot, T the first timer, M the longest one, R the number of rounds.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "sim/time/retransmission.h"
#include "sim/time/retransmission_rounds.h"
#include "sim/time/retransmission_times.h"

namespace droptest::sim {
namespace {

constexpr double kNegligible = 1e-17;
constexpr double kLongestSeconds = 60;
constexpr std::uint64_t kMostDoublings = 1000;

class Timeout final : public RetransmissionProtocol {
 public:
  Timeout(double timeout_seconds, double longest_seconds)
      : timeout_seconds_(timeout_seconds), longest_seconds_(longest_seconds) {}

  Delivery deliver(SlotFates& fates, std::uint64_t packets, const LinkTiming& timing) const override {
    return deliver_in_rounds(fates, packets, timing.slot_seconds,
                             [this](std::uint64_t round) { return wait_seconds(round); });
  }

  // Round k is followed by a wait w(k) = min(M, 2^(k-1) T) if there is another one, so E = sum over k >= 1 of
  // w(k) P(R > k). For m = 1 and as long as no timer reaches M that is T p / (1 - 2p).
  double expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const override {
    if (packets == 0) return 0;
    double waits = 0;
    for (std::uint64_t k = 1;; ++k) {
      const double term = wait_seconds(k) * more_rounds_probability(p, packets, k);
      waits += term;
      if (term <= kNegligible * waits) break;
    }
    return static_cast<double>(packets) * timing.slot_seconds * p / (1 - p) + waits;
  }

 private:
  // Of the timer that ends round k; doubling it a thousand times is more than any maximum.
  double wait_seconds(std::uint64_t round) const {
    return std::min(longest_seconds_,
                    std::ldexp(timeout_seconds_, static_cast<int>(std::min(round, kMostDoublings)) - 1));
  }

  double timeout_seconds_;
  double longest_seconds_;
};

}  // namespace

std::unique_ptr<RetransmissionProtocol> make_timeout(const Parameters& parameters) {
  parameters.allow_only({"protocol", "timeout_microseconds", "longest_timeout_microseconds"});
  const std::optional<double> seconds = timeout_seconds(parameters);
  if (!seconds) parameters.member("timeout_microseconds");  // says that it is missing
  const double longest = parameters.has("longest_timeout_microseconds")
                             ? parameters.number("longest_timeout_microseconds",
                                                 parameters.number("timeout_microseconds", 0, 1e12), 1e12) *
                                   1e-6
                             : std::max(*seconds, kLongestSeconds);
  return std::make_unique<Timeout>(*seconds, longest);
}

}  // namespace droptest::sim
