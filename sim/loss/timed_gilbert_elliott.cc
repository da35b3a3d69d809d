// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/timed_gilbert_elliott.h"

#include <cmath>

#include "sim/error.h"
#include "sim/loss/probability.h"

namespace droptest::sim {
namespace {

constexpr double kLongestMicroseconds = 1e12;
constexpr double kMostGapTicks = 1e12;  ///< a million gaps of that length fit into the indices of a link

void require(bool holds, const char* what, double got, const std::string& want) {
  if (holds) return;
  throw ConfigError(std::string("timed_gilbert_elliott: ") + what + ": got " + shortest_text(got) + ", want " + want);
}

GilbertElliottRates rates_per_tick(const TimedRates& c) {
  const auto is_time = [](double t) { return t > 0 && t <= kLongestMicroseconds; };
  require(is_time(c.mean_good_microseconds), "mean_good_microseconds", c.mean_good_microseconds,
          "a number in (0, 1e12]");
  require(is_time(c.mean_bad_microseconds), "mean_bad_microseconds", c.mean_bad_microseconds, "a number in (0, 1e12]");
  require(is_time(c.packet_microseconds), "packet_microseconds", c.packet_microseconds, "a number in (0, 1e12]");
  require(c.gap_microseconds >= 0 && c.gap_microseconds <= kMostGapTicks * c.packet_microseconds, "gap_microseconds",
          c.gap_microseconds, "a number in [0, 1e12 x packet_microseconds]");
  const double sojourns = 1 / c.mean_good_microseconds + 1 / c.mean_bad_microseconds;
  const double forgets = -std::expm1(-c.packet_microseconds * sojourns);  // 1 - lambda
  require(forgets >= GilbertElliott::kSmallestDecisive, "packet_microseconds", c.packet_microseconds,
          "at least a millionth of the shorter mean stay: the state is found by looking back that many packets");
  const double bad = c.mean_bad_microseconds / (c.mean_good_microseconds + c.mean_bad_microseconds);
  const GilbertElliottRates rates{forgets * bad, forgets * (1 - bad), c.loss_good, c.loss_bad};
  const std::string drawable =
      "stays whose changes per packet have probabilities that 32-bit draws can express, "
      "at least 2^-32";
  require(is_drawable(rates.p_good_to_bad), "mean_good_microseconds", c.mean_good_microseconds, drawable);
  require(is_drawable(rates.p_bad_to_good), "mean_bad_microseconds", c.mean_bad_microseconds, drawable);
  return rates;
}

double packet_microseconds(const MessagePlace& place) { return place.ticks ? place.ticks->packet_microseconds : 0; }

}  // namespace

TimedGilbertElliott::TimedGilbertElliott(const TimedRates& rates)
    : rates_(rates),
      chain_(rates_per_tick(rates)),
      gap_ticks_(static_cast<std::uint64_t>(std::llround(rates.gap_microseconds / rates.packet_microseconds))) {}

std::uint64_t TimedGilbertElliott::first_draw(const MessagePlace& place) const {
  if (place.ticks.has_value()) return place.origin + place.ticks->first;
  return place.first_packet + place.message * gap_ticks_;
}

GilbertElliott TimedGilbertElliott::chain_of(double packet_microseconds) const {
  if (packet_microseconds == 0 || packet_microseconds == rates_.packet_microseconds) return chain_;
  TimedRates rates = rates_;
  rates.gap_microseconds = 0;
  rates.packet_microseconds = packet_microseconds;
  return GilbertElliott(rates_per_tick(rates));
}

std::optional<FateChain> TimedGilbertElliott::fate_chain(double packet_microseconds) const {
  return chain_of(packet_microseconds).fate_chain(0);
}

void TimedGilbertElliott::draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet,
                               PacketMask& lost) const {
  chain_.draw(seed, link, first_packet, lost);
}

void TimedGilbertElliott::draw_message(std::uint64_t seed, const Link& link, const MessagePlace& place,
                                       PacketMask& lost) const {
  chain_of(packet_microseconds(place)).draw(seed, link, first_draw(place), lost);
}

LostCount TimedGilbertElliott::message_count(std::uint64_t /*seed*/, const Link& /*link*/, const MessagePlace& place,
                                             std::uint64_t n) const {
  return {static_cast<double>(n) * loss_rate(), chain_of(packet_microseconds(place)).lost_count_variance(n)};
}

double TimedGilbertElliott::state_correlation(double microseconds) const {
  return std::exp(-microseconds * (1 / rates_.mean_good_microseconds + 1 / rates_.mean_bad_microseconds));
}

std::string TimedGilbertElliott::describe() const {
  return "timed_gilbert_elliott(mean_good_microseconds=" + shortest_text(rates_.mean_good_microseconds) +
         ", mean_bad_microseconds=" + shortest_text(rates_.mean_bad_microseconds) +
         ", packet_microseconds=" + shortest_text(rates_.packet_microseconds) +
         ", gap_microseconds=" + shortest_text(rates_.gap_microseconds) +
         ", loss_good=" + shortest_text(rates_.loss_good) + ", loss_bad=" + shortest_text(rates_.loss_bad) + ")";
}

std::unique_ptr<LossProcess> make_timed_gilbert_elliott(const Parameters& parameters) {
  parameters.allow_only({"model", "mean_good_microseconds", "mean_bad_microseconds", "packet_microseconds",
                         "gap_microseconds", "loss_good", "loss_bad"});
  TimedRates rates;
  rates.mean_good_microseconds = parameters.number("mean_good_microseconds", 0, kLongestMicroseconds);
  rates.mean_bad_microseconds = parameters.number("mean_bad_microseconds", 0, kLongestMicroseconds);
  rates.packet_microseconds = parameters.number("packet_microseconds", 0, kLongestMicroseconds);
  if (parameters.has("gap_microseconds")) {
    rates.gap_microseconds = parameters.number("gap_microseconds", 0, kLongestMicroseconds);
  }
  if (parameters.has("loss_good")) rates.loss_good = parameters.probability("loss_good");
  if (parameters.has("loss_bad")) rates.loss_bad = parameters.probability("loss_bad");
  try {
    return std::make_unique<TimedGilbertElliott>(rates);
  } catch (const ConfigError& error) {
    throw ConfigError(parameters.where() + ": " + error.what());
  }
}

}  // namespace droptest::sim
