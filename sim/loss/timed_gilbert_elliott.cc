// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/timed_gilbert_elliott.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "sim/error.h"
#include "sim/loss/probability.h"
#include "sim/time/link_cost.h"

namespace droptest::sim {
namespace {

constexpr double kLongestMicroseconds = 1e12;
constexpr double kMostGapPackets = 1e12;  ///< a million gaps of that length fit into the indices of a link
/// The first tick of a stopped clock, behind the ticks of a clock that runs (whole_slots()).
constexpr std::uint64_t kStoppedTicks = std::uint64_t{1} << 62U;
constexpr double kDenseTicks = 64;  ///< packets that are fewer ticks apart are drawn together
constexpr std::uint64_t kWindowTicks = 4096;

void require(bool holds, const char* what, double got, const std::string& want) {
  if (holds) return;
  throw ConfigError(std::string("timed_gilbert_elliott: ") + what + ": got " + shortest_text(got) + ", want " + want);
}

/// The rates of the chain from one time to another one, `step` later; `name` says which step. Times are checked.
GilbertElliottRates rates_per(double step, const char* name, const TimedRates& c) {
  const auto is_time = [](double t) { return t > 0 && t <= kLongestMicroseconds; };
  require(is_time(c.mean_good_microseconds), "mean_good_microseconds", c.mean_good_microseconds,
          "a number in (0, 1e12]");
  require(is_time(c.mean_bad_microseconds), "mean_bad_microseconds", c.mean_bad_microseconds, "a number in (0, 1e12]");
  require(is_time(step), name, step, "a number in (0, 1e12]");
  const double sojourns = 1 / c.mean_good_microseconds + 1 / c.mean_bad_microseconds;
  const double forgets = -std::expm1(-step * sojourns);  // 1 - lambda
  const double bad = c.mean_bad_microseconds / (c.mean_good_microseconds + c.mean_bad_microseconds);
  return {forgets * bad, forgets * (1 - bad), c.loss_good, c.loss_bad};
}

/// rates_per() for states that are drawn in such steps.
GilbertElliottRates drawn_rates_per(double step, const char* name, const TimedRates& c) {
  const GilbertElliottRates rates = rates_per(step, name, c);
  require(rates.p_good_to_bad + rates.p_bad_to_good >= GilbertElliott::kSmallestDecisive, name, step,
          "at least a millionth of the shorter mean stay: the state is found by looking back that often");
  const std::string drawable = std::string("stays whose changes in ") + name + " = " + shortest_text(step) +
                               " have probabilities that 32-bit draws can express, at least 2^-32";
  require(is_drawable(rates.p_good_to_bad), "mean_good_microseconds", c.mean_good_microseconds, drawable);
  require(is_drawable(rates.p_bad_to_good), "mean_bad_microseconds", c.mean_bad_microseconds, drawable);
  return rates;
}

GilbertElliott drawn_packets(const TimedRates& c) {
  return GilbertElliott(drawn_rates_per(c.packet_microseconds, "packet_microseconds", c));
}

/// The chain from packet to packet. If there are ticks, it is theory, and its packets may be short against the stays.
GilbertElliott packets_of(const TimedRates& rates) {
  if (rates.tick_microseconds == 0) return drawn_packets(rates);
  return GilbertElliott::for_theory(rates_per(rates.packet_microseconds, "packet_microseconds", rates));
}

/// The chain of the states only: the fate is another draw.
GilbertElliott ticks_of(const TimedRates& rates) {
  GilbertElliottRates states = drawn_rates_per(rates.tick_microseconds, "tick_microseconds", rates);
  states.loss_good = 0;
  states.loss_bad = 1;
  return GilbertElliott(states);
}

/// The stream of a link's states, which all its users share.
Link all_users(const Link& link) { return {TrafficClass{}, Half::kReduce, link.source, link.destination}; }

double packet_microseconds(const MessagePosition& place) { return place.times ? place.times->packet_microseconds : 0; }

bool has_departure(const MessagePosition& place) { return place.times && place.times->departs_microseconds; }

}  // namespace

double default_tick_microseconds(double mean_good_microseconds, double mean_bad_microseconds) {
  return 1e-3 * std::min(mean_good_microseconds, mean_bad_microseconds);
}

TimedGilbertElliott::TimedGilbertElliott(const TimedRates& rates) : rates_(rates), chain_(packets_of(rates)) {
  require(rates.gap_microseconds >= 0 && rates.gap_microseconds <= kMostGapPackets * rates.packet_microseconds,
          "gap_microseconds", rates.gap_microseconds, "a number in [0, 1e12 x packet_microseconds]");
  require(rates.tick_microseconds >= 0, "tick_microseconds", rates.tick_microseconds, "a number in [0, 1e12]");
  require_drawable("timed_gilbert_elliott: loss_good", rates.loss_good);
  require_drawable("timed_gilbert_elliott: loss_bad", rates.loss_bad);
  if (rates.tick_microseconds > 0) ticks_ = ticks_of(rates);
  gap_packets_ = static_cast<std::uint64_t>(std::llround(rates.gap_microseconds / rates.packet_microseconds));
}

std::uint64_t TimedGilbertElliott::first_draw(const MessagePosition& place) const {
  if (has_departure(place)) {
    const PacketTimes& times = *place.times;
    const double half = times.packet_microseconds / 2;
    return (times.is_stopped ? kStoppedTicks : 0) + times.slot +
           whole_slots(*times.departs_microseconds + half, times.packet_microseconds);
  }
  if (place.times.has_value()) return place.origin + place.times->slot;
  return place.first_packet + place.message * gap_packets_;
}

GilbertElliott TimedGilbertElliott::chain_of(double packet_microseconds) const {
  TimedRates rates = rates_;
  if (packet_microseconds > 0) {
    rates.gap_microseconds = 0;
    rates.packet_microseconds = packet_microseconds;
  }
  const bool is_drawn = !ticks_ && rates.packet_microseconds == rates_.packet_microseconds;
  return is_drawn ? chain_ : drawn_packets(rates);
}

std::optional<FateChain> TimedGilbertElliott::fate_chain(double packet_microseconds) const {
  return chain_of(packet_microseconds).fate_chain(0);
}

void TimedGilbertElliott::draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet,
                               PacketMask& lost) const {
  chain_of(0).draw(seed, link, first_packet, lost);
}

void TimedGilbertElliott::draw_message(std::uint64_t seed, const Link& link, const MessagePosition& place,
                                       PacketMask& lost) const {
  if (has_departure(place)) return draw_by_clock(seed, link, place, lost);
  chain_of(packet_microseconds(place)).draw(seed, link, first_draw(place), lost);
}

TimedGilbertElliott::Clock TimedGilbertElliott::clock() const {
  if (ticks_) return {rates_.tick_microseconds, *ticks_};
  TimedRates rates = rates_;
  rates.tick_microseconds = default_tick_microseconds(rates.mean_good_microseconds, rates.mean_bad_microseconds);
  return {rates.tick_microseconds, sim::ticks_of(rates)};
}

std::uint64_t TimedGilbertElliott::Clock::tick_of(const PacketTimes& times, std::uint64_t packet) const {
  const double leaves =
      *times.departs_microseconds + static_cast<double>(times.slot + packet) * times.packet_microseconds;
  return (times.is_stopped ? kStoppedTicks : 0) + whole_slots(leaves, microseconds);
}

// States are drawn in windows of ticks, each with one look-back. If packets are far apart, a window has one tick.
void TimedGilbertElliott::draw_by_clock(std::uint64_t seed, const Link& link, const MessagePosition& place,
                                        PacketMask& lost) const {
  const std::uint64_t packets = lost.size();
  if (packets == 0) return;
  const Clock clock = this->clock();
  const std::uint64_t end = clock.tick_of(*place.times, packets - 1) + 1;
  const bool is_dense = place.times->packet_microseconds < kDenseTicks * clock.microseconds;
  PacketMask states;
  std::uint64_t begin = 0;
  lost.resize(packets);
  for (std::uint64_t packet = 0; packet < packets; ++packet) {
    const std::uint64_t tick = clock.tick_of(*place.times, packet);
    if (tick >= begin + states.size() || states.size() == 0) {
      begin = tick;
      states.resize(is_dense ? std::min(kWindowTicks, end - begin) : 1);
      clock.states.draw_states(seed, all_users(link), Purpose::kTimedState, begin, states);
    }
    if (states.lost(tick - begin)) lost.set_lost(packet);
  }
  chain_.lose_in_states(seed, link, place.first_packet, lost);
}

LostCount TimedGilbertElliott::message_count(std::uint64_t /*seed*/, const Link& /*link*/, const MessagePosition& place,
                                             std::uint64_t n) const {
  return {static_cast<double>(n) * loss_rate(), chain_of(packet_microseconds(place)).lost_count_variance(n)};
}

// The variance of all packets so far grows by that of the message and by twice its covariance with all packets before,
// A lambda^d for packets d ticks apart. `memory.weight` is the sum of lambda^(tick - other) over the packets so far,
// the last one too.
std::optional<LostCount> TimedGilbertElliott::count_by_clock(const MessagePosition& place, std::uint64_t n,
                                                             ClockMemory& memory) const {
  if (!has_departure(place)) return std::nullopt;
  if (n == 0) return LostCount{};
  const Clock clock = this->clock();
  const auto& [p, r, good, bad] = clock.states.rates();
  const double s = p + r;
  const double between = rates_.loss_bad - rates_.loss_good;
  const double covariance = p * r * between * between / (s * s);
  const std::uint64_t first = clock.tick_of(*place.times, 0);
  if (memory.tick_microseconds != clock.microseconds || first < memory.tick) memory = {clock.microseconds, first, 0};
  std::array<std::pair<std::uint64_t, double>, 2> powers{};  // steps take turns between two numbers
  powers.fill({0, 1});
  double weights = 0;
  for (std::uint64_t packet = 0; packet < n; ++packet) {
    const std::uint64_t tick = clock.tick_of(*place.times, packet);
    const std::uint64_t step = tick - memory.tick;
    if (step != powers[0].first) std::swap(powers[0], powers[1]);
    if (step != powers[0].first) powers[0] = {step, std::exp(static_cast<double>(step) * std::log1p(-s))};
    memory.weight *= powers[0].second;
    weights += memory.weight;
    memory.weight += 1;
    memory.tick = tick;
  }
  const double rate = loss_rate();
  const auto count = static_cast<double>(n);
  return LostCount{count * rate, count * rate * (1 - rate) + 2 * covariance * weights};
}

std::string TimedGilbertElliott::describe() const {
  return "timed_gilbert_elliott(mean_good_microseconds=" + shortest_text(rates_.mean_good_microseconds) +
         ", mean_bad_microseconds=" + shortest_text(rates_.mean_bad_microseconds) +
         ", packet_microseconds=" + shortest_text(rates_.packet_microseconds) +
         (ticks_ ? ", tick_microseconds=" + shortest_text(rates_.tick_microseconds)
                 : ", gap_microseconds=" + shortest_text(rates_.gap_microseconds)) +
         ", loss_good=" + shortest_text(rates_.loss_good) + ", loss_bad=" + shortest_text(rates_.loss_bad) + ")";
}

std::unique_ptr<LossProcess> make_timed_gilbert_elliott(const Parameters& parameters) {
  parameters.allow_only({"model", "mean_good_microseconds", "mean_bad_microseconds", "packet_microseconds",
                         "tick_microseconds", "gap_microseconds", "loss_good", "loss_bad"});
  TimedRates rates;
  rates.mean_good_microseconds = parameters.number("mean_good_microseconds", 0, kLongestMicroseconds);
  rates.mean_bad_microseconds = parameters.number("mean_bad_microseconds", 0, kLongestMicroseconds);
  rates.packet_microseconds = parameters.number("packet_microseconds", 0, kLongestMicroseconds);
  if (parameters.has("tick_microseconds")) {
    rates.tick_microseconds = parameters.number("tick_microseconds", 0, kLongestMicroseconds);
  }
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
