// SPDX-License-Identifier: Apache-2.0
#include "sim/recovery/retransmission.h"

#include <algorithm>
#include <string>

#include "sim/error.h"

namespace droptest::sim {
namespace {

constexpr std::int64_t kMostBudget = 1000;
constexpr std::int64_t kMostWindow = 1'000'000'000;
constexpr double kLongestSeconds = 60;
constexpr double kSecondsPerMicrosecond = 1e-6;

// The most rounds of a message without a budget: far above the expectation, kMostExpectedTries for each packet.
constexpr std::uint64_t kFewRounds = 100000;
constexpr std::uint64_t kRoundsPerPacket = 4000;

std::optional<std::uint64_t> window_packets(const Parameters& parameters) {
  if (!parameters.has("window_packets")) return std::nullopt;
  return static_cast<std::uint64_t>(parameters.integer("window_packets", 1, kMostWindow));
}

void refuse_parity(const Parameters& parameters, const std::optional<Parity>& parity) {
  if (!parity.has_value()) return;
  parameters.fail("protocol",
                  "selective_repeat with parity: a receiver that takes packets in order only never holds the rest "
                  "of a block from which it could repair a loss");
}

std::shared_ptr<const Retransmission> make_selective_repeat(const Parameters& parameters, RoundBudget rounds,
                                                            const std::optional<Parity>& parity) {
  parameters.allow_only({"protocol", "rounds", "timeout_microseconds"});
  RepeatTimer timer;
  if (parameters.has("timeout_microseconds")) {
    timer.first_seconds = parameters.number("timeout_microseconds", 1e-3, 1e12) * kSecondsPerMicrosecond;
    timer.longest_seconds = *timer.first_seconds;
  }
  return std::make_shared<SelectiveRepeat>(rounds, parity, timer);
}

std::shared_ptr<const Retransmission> make_go_back_n(const Parameters& parameters, RoundBudget rounds,
                                                     const std::optional<Parity>& parity) {
  parameters.allow_only({"protocol", "rounds", "window_packets"});
  refuse_parity(parameters, parity);
  return std::make_shared<GoBackN>(rounds, window_packets(parameters));
}

std::shared_ptr<const Retransmission> make_go_back_0(const Parameters& parameters, RoundBudget rounds,
                                                     const std::optional<Parity>& parity) {
  parameters.allow_only({"protocol", "rounds", "window_packets"});
  refuse_parity(parameters, parity);
  return std::make_shared<GoBack0>(rounds, window_packets(parameters));
}

std::shared_ptr<const Retransmission> make_timeout(const Parameters& parameters, RoundBudget rounds,
                                                   const std::optional<Parity>& parity) {
  parameters.allow_only({"protocol", "rounds", "timeout_microseconds", "longest_timeout_microseconds"});
  const double first = parameters.number("timeout_microseconds", 1e-3, 1e12);
  const double longest = parameters.has("longest_timeout_microseconds")
                             ? parameters.number("longest_timeout_microseconds", first, 1e12)
                             : std::max(first, kLongestSeconds / kSecondsPerMicrosecond);
  return std::make_shared<SelectiveRepeat>(
      rounds, parity, RepeatTimer{first * kSecondsPerMicrosecond, longest * kSecondsPerMicrosecond});
}

}  // namespace

std::optional<double> Retransmission::residual_rate(const LossProcess& /*process*/) const {
  return is_reliable() ? std::optional<double>(0) : std::nullopt;
}

std::optional<double> Retransmission::residual_rate(const LossProcess& process, std::uint64_t /*data_packets*/) const {
  return residual_rate(process);
}

double Retransmission::expected_tries(const LossProcess& process, std::uint64_t /*packets*/) const {
  return 1 / process.all_arrive_probability(1);
}

std::string Retransmission::budget_text() const {
  return rounds_.has_value() ? "rounds=" + std::to_string(*rounds_) : "rounds=unlimited";
}

std::uint64_t Retransmission::most_rounds(std::uint64_t packets) const {
  return rounds_.value_or(kFewRounds + kRoundsPerPacket * packets);
}

void Retransmission::give_up(std::uint64_t rounds, std::uint64_t packets) const {
  throw ConfigError("retransmission: " + describe() + ": a message of " + std::to_string(packets) +
                    " packets is still not across after " + std::to_string(rounds) +
                    " rounds; want a budget of rounds, a lower loss rate, or shorter messages");
}

const std::vector<RetransmissionEntry>& retransmission_protocols() {
  static const std::vector<RetransmissionEntry> entries = {
      {"selective_repeat",
       "only lost packets are sent again, a round trip later (or timeout_microseconds later, if it is set)",
       make_selective_repeat},
      {"go_back_n", "all from the lost packet on are sent again (window_packets: default a round trip)",
       make_go_back_n},
      {"go_back_0", "the whole message is sent again (window_packets: default a round trip)", make_go_back_0},
      {"timeout",
       "lost packets are sent again when a timer ends that doubles each time (timeout_microseconds) up to a maximum "
       "(longest_timeout_microseconds: default 60 s)",
       make_timeout},
  };
  return entries;
}

std::shared_ptr<const Retransmission> make_retransmission(const Parameters& parameters,
                                                          const std::optional<Parity>& parity) {
  parameters.require_members("a protocol, e.g. {\"protocol\": \"selective_repeat\", \"rounds\": 3}");
  const std::string protocol = parameters.text("protocol");
  RoundBudget rounds;
  if (parameters.has("rounds")) rounds = static_cast<std::uint64_t>(parameters.integer("rounds", 1, kMostBudget));
  std::string known;
  for (const RetransmissionEntry& entry : retransmission_protocols()) {
    if (entry.protocol == protocol) return entry.make(parameters, rounds, parity);
    known += (known.empty() ? "" : ", ") + std::string(entry.protocol);
  }
  parameters.fail("protocol", "one of " + known);
}

}  // namespace droptest::sim
