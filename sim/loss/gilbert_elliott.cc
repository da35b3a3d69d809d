// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/gilbert_elliott.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "sim/error.h"
#include "sim/loss/chain_states.h"
#include "sim/loss/mask_writer.h"
#include "sim/loss/probability.h"
#include "sim/random/draw_words.h"
#include "sim/random/threshold.h"

namespace droptest::sim {
namespace {

constexpr std::size_t kTileWords = 64;
using Tile = std::array<std::uint64_t, kTileWords>;

struct TwoByTwo {
  double a, b, c, d;  ///< rows (a b), (c d)
  TwoByTwo operator*(const TwoByTwo& o) const {
    return {a * o.a + b * o.c, a * o.b + b * o.d, c * o.a + d * o.c, c * o.b + d * o.d};
  }
};

TwoByTwo power(TwoByTwo base, std::uint64_t exponent) {
  TwoByTwo result{1, 0, 0, 1};
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result = result * base;
    base = base * base;
  }
  return result;
}

/// P(a run of consecutive losses is at least `packets` long) in a chain whose runs end.
double run_at_least(const GilbertElliottRates& rates, std::uint64_t packets) {
  if (packets <= 1) return 1;
  const auto& [p, r, g, b] = rates;
  const std::uint64_t more = packets - 1;
  // If one state loses nothing, a burst stays in the other: one geometric law.
  if (g == 0) return std::exp(static_cast<double>(more) * (std::log1p(-r) + std::log(b)));
  if (b == 0) return std::exp(static_cast<double>(more) * (std::log1p(-p) + std::log(g)));
  // A burst begins after a delivered packet: the state shares after it, then one step of the chain and one loss per
  // packet.
  const double good = r * (1 - g) * (1 - p) + p * (1 - b) * r;
  const double bad = r * (1 - g) * p + p * (1 - b) * (1 - r);
  const TwoByTwo lose_and_step{g * (1 - p), g * p, b * r, b * (1 - r)};
  const TwoByTwo all = power(lose_and_step, more);
  return (good * (all.a * g + all.b * b) + bad * (all.c * g + all.d * b)) / (good * g + bad * b);
}

void require_fates(const GilbertElliottRates& rates) {
  require_drawable("gilbert_elliott: p_good_to_bad", rates.p_good_to_bad);
  require_drawable("gilbert_elliott: p_bad_to_good", rates.p_bad_to_good);
  require_drawable("gilbert_elliott: loss_good", rates.loss_good);
  require_drawable("gilbert_elliott: loss_bad", rates.loss_bad);
  const double sum = rates.p_good_to_bad + rates.p_bad_to_good;
  if (sum < GilbertElliott::kSmallestDecisive || sum > 2 - GilbertElliott::kSmallestDecisive) {
    throw ConfigError("gilbert_elliott: p_good_to_bad + p_bad_to_good: got " + shortest_text(sum) +
                      ", want a number in [0.000001, 1.999999]: the state is decided by a draw some " +
                      "1 / min(sum, 2 - sum) packets back, and the look-back is 1000000 packets at most");
  }
}

}  // namespace

GilbertElliottRates rates_of_burst(double loss_rate, double mean_burst_packets) {
  if (!(loss_rate >= 0 && loss_rate < 1)) {
    throw ConfigError("gilbert_elliott: loss_rate: got " + shortest_text(loss_rate) +
                      ", want a number in [0, 1) with mean_burst_packets");
  }
  // Losses that lie apart leave room for no more than B of B + 1 packets.
  const double smallest = std::max(1.0, loss_rate / (1 - loss_rate));
  // The bound is a quotient of rounded numbers: at 0.9 it comes out as 9.000000000000002.
  constexpr double kRounding = 1e-12;
  if (!(mean_burst_packets >= smallest * (1 - kRounding) && std::isfinite(mean_burst_packets))) {
    throw ConfigError("gilbert_elliott: mean_burst_packets: got " + shortest_text(mean_burst_packets) +
                      ", want a number of at least " + shortest_text(std::round(smallest * 1e12) / 1e12) +
                      " at loss_rate " + shortest_text(loss_rate));
  }
  return {std::min(1.0, loss_rate / (mean_burst_packets * (1 - loss_rate))), 1 / mean_burst_packets, 0, 1};
}

GilbertElliott::GilbertElliott(const GilbertElliottRates& rates) : GilbertElliott(rates, Use::kFates) {}

GilbertElliott GilbertElliott::for_theory(const GilbertElliottRates& rates) { return {rates, Use::kTheory}; }

GilbertElliott::GilbertElliott(const GilbertElliottRates& rates, Use use) : rates_(rates) {
  if (use == Use::kFates) require_fates(rates);
  const std::uint64_t bad = probability_threshold(rates.p_good_to_bad);
  const std::uint64_t good = kCertain - probability_threshold(rates.p_bad_to_good);
  to_bad_ = std::min(bad, good);
  to_good_ = std::max(bad, good);
  middle_swaps_ = bad > good;
  lost_in_good_ = probability_threshold(rates.loss_good);
  lost_in_bad_ = probability_threshold(rates.loss_bad);
}

bool GilbertElliott::bad_before(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t word) const {
  Tile set_tile;
  Tile below_tile;
  // Mostly one word is enough; if decisive draws are rare, larger steps cost less per packet.
  for (std::size_t step = 1;; step = std::min(4 * step, kTileWords)) {
    const std::span<std::uint64_t> set(set_tile.data(), step);
    const std::span<std::uint64_t> below(below_tile.data(), step);
    word -= step;
    draws_below(seed, link, purpose, word, to_bad_, set, to_good_, below);
    for (std::size_t w = step; w-- > 0;) {
      const std::uint64_t decisive = set[w] | ~below[w];
      if (decisive == 0) continue;  // 64 swaps change nothing
      const int latest = 63 - std::countl_zero(decisive);
      const bool bad = (set[w] >> latest & 1) != 0;
      return middle_swaps_ && (63 - latest) % 2 == 1 ? !bad : bad;
    }
  }
}

template <class Change>
void GilbertElliott::walk_states(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first,
                                 PacketMask& mask, const Change& change) const {
  MaskWriter writer(first, mask);
  if (writer.words_left() == 0) return;
  Tile set_tile;
  Tile state_tile;
  std::uint64_t word = writer.first_word();
  bool bad = bad_before(seed, link, purpose, word);
  while (writer.words_left() > 0) {
    const std::size_t words = std::min<std::uint64_t>(kTileWords, writer.words_left());
    const std::span<std::uint64_t> set(set_tile.data(), words);
    const std::span<std::uint64_t> states(state_tile.data(), words);
    draws_below(seed, link, purpose, word, to_bad_, set, to_good_, states);
    for (std::size_t w = 0; w < words; ++w) {
      const std::uint64_t middle = states[w] & ~set[w];
      states[w] = middle_swaps_ ? run_swapping_states(set[w], middle, bad) : run_states(set[w], middle, bad);
      bad = states[w] >> 63 != 0;
    }
    change(word, states);
    writer.put(states);
    word += words;
  }
}

void GilbertElliott::draw_states(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first,
                                 PacketMask& bad) const {
  walk_states(seed, link, purpose, first, bad, [](std::uint64_t /*word*/, std::span<std::uint64_t> /*states*/) {});
}

void GilbertElliott::draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const {
  const auto lose = [&](std::uint64_t word, std::span<std::uint64_t> states) {
    if (lost_in_good_ == 0 && lost_in_bad_ == kCertain) return;
    for (std::uint64_t& state : states) {
      // A word that is all good needs only the draws of the good state: none if its loss is 0 or 1.
      std::uint64_t in_good = 0;
      std::uint64_t in_bad = 0;
      if (state == 0) {
        draws_below(seed, link, Purpose::kLossEmission, word, lost_in_good_, {&in_good, 1});
      } else {
        draws_below(seed, link, Purpose::kLossEmission, word, lost_in_good_, {&in_good, 1}, lost_in_bad_, {&in_bad, 1});
      }
      state = (state & in_bad) | (~state & in_good);
      ++word;
    }
  };
  walk_states(seed, link, Purpose::kLossTransition, first_packet, lost, lose);
}

void GilbertElliott::lose_in_states(std::uint64_t seed, const Link& link, std::uint64_t first_packet,
                                    PacketMask& bad) const {
  if (lost_in_good_ == 0 && lost_in_bad_ == kCertain) return;
  PacketMask in_good(bad.size());
  PacketMask in_bad(bad.size());
  MaskWriter to_good(first_packet, in_good);
  MaskWriter to_bad(first_packet, in_bad);
  for (std::uint64_t word = to_good.first_word(); to_good.words_left() > 0; ++word) {
    std::uint64_t good = 0;
    std::uint64_t of_bad = 0;
    draws_below(seed, link, Purpose::kLossEmission, word, lost_in_good_, {&good, 1}, lost_in_bad_, {&of_bad, 1});
    to_good.put({&good, 1});
    to_bad.put({&of_bad, 1});
  }
  for (std::size_t w = 0; w < bad.words().size(); ++w) {
    std::uint64_t& states = bad.words()[w];
    states = (states & in_bad.words()[w]) | (~states & in_good.words()[w]);
  }
}

// Theory. p, r, g, b are the four rates; k = 1 - g and h = 1 - b; good and bad have the stationary shares r / (p + r)
// and p / (p + r). Each formula is written as a sum of terms of one sign, so that nothing cancels for small rates.

double GilbertElliott::loss_rate() const {
  const auto& [p, r, g, b] = rates_;
  return (r * g + p * b) / (p + r);
}

double GilbertElliott::p_delivered() const {
  const auto& [p, r, g, b] = rates_;
  return (r * (1 - g) + p * (1 - b)) / (p + r);
}

double GilbertElliott::p_burst_ends() const {
  const auto& [p, r, g, b] = rates_;
  const double k = 1 - g;
  const double h = 1 - b;
  return (r * g * ((1 - p) * k + p * h) + p * b * ((1 - r) * h + r * k)) / (p + r);
}

// In any stationary process the mean run is P(lost) / P(lost, then delivered), and as many gaps begin as bursts end.
double GilbertElliott::mean_burst_packets() const {
  const double lost = loss_rate();
  return lost == 0 ? 0 : lost / p_burst_ends();
}

double GilbertElliott::mean_gap_packets() const {
  const double delivered = p_delivered();
  return delivered == 0 ? 0 : delivered / p_burst_ends();
}

double GilbertElliott::burst_at_least(std::uint64_t packets) const {
  if (loss_rate() == 0) return 0;
  return p_burst_ends() == 0 ? 1 : run_at_least(rates_, packets);
}

// A gap is a burst of the chain with losses and deliveries exchanged.
double GilbertElliott::gap_at_least(std::uint64_t packets) const {
  if (p_delivered() == 0) return 0;
  const auto& [p, r, g, b] = rates_;
  return p_burst_ends() == 0 ? 1 : run_at_least({p, r, 1 - g, 1 - b}, packets);
}

double GilbertElliott::lost_count_variance(std::uint64_t n) const { return chain_of_fates().lost_count_variance(n); }

// From good a draw below the threshold of p moves to bad; from bad only one not below 1 - r moves to good.
FateChain GilbertElliott::chain_of_fates() const {
  const auto& [p, r, g, b] = rates_;
  const std::uint64_t from_good = middle_swaps_ ? to_good_ : to_bad_;
  const std::uint64_t from_bad = middle_swaps_ ? to_bad_ : to_good_;
  return FateChain::of_two({r / (p + r), g, {1 - p, p, 0, 0}, {from_good, kCertain}, {1, 0, 0}},
                           {p / (p + r), b, {r, 1 - r, 0, 0}, {from_bad, kCertain}, {1, 0, 0}});
}

double GilbertElliott::autocorrelation(std::uint64_t lag) const {
  if (lag == 0) return 1;
  const auto& [p, r, g, b] = rates_;
  const double s = p + r;
  const double variance = loss_rate() * p_delivered();
  if (variance == 0) return 0;
  return p * r * (b - g) * (b - g) / (s * s) * std::pow(1 - s, static_cast<double>(lag)) / variance;
}

std::optional<ChainThresholds> GilbertElliott::thresholds() const {
  return ChainThresholds{to_bad_, to_good_, lost_in_good_, lost_in_bad_, middle_swaps_};
}

std::optional<LossChain> GilbertElliott::chain() const {
  const auto& [p, r, good, bad] = rates_;
  return LossChain{p / (p + r), 1 - p - r, good, bad};
}

std::string GilbertElliott::describe() const {
  return "gilbert_elliott(p_good_to_bad=" + shortest_text(rates_.p_good_to_bad) +
         ", p_bad_to_good=" + shortest_text(rates_.p_bad_to_good) + ", loss_good=" + shortest_text(rates_.loss_good) +
         ", loss_bad=" + shortest_text(rates_.loss_bad) + ")";
}

std::unique_ptr<LossProcess> make_gilbert_elliott(const Parameters& parameters) {
  parameters.allow_only(
      {"model", "p_good_to_bad", "p_bad_to_good", "loss_good", "loss_bad", "loss_rate", "mean_burst_packets"});
  const bool by_burst = parameters.has("loss_rate") || parameters.has("mean_burst_packets");
  for (const char* rate : {"p_good_to_bad", "p_bad_to_good", "loss_good", "loss_bad"}) {
    if (by_burst && parameters.has(rate)) {
      parameters.fail(
          rate,
          "either loss_rate and mean_burst_packets, or p_good_to_bad, p_bad_to_good, loss_good and loss_bad, "
          "not some of both");
    }
  }
  GilbertElliottRates rates;
  double loss_rate = 0;
  double mean_burst = 0;
  if (by_burst) {
    loss_rate = parameters.probability("loss_rate");
    mean_burst = parameters.number("mean_burst_packets", 1, 1 / GilbertElliott::kSmallestDecisive);
  } else {
    rates = {parameters.probability("p_good_to_bad"), parameters.probability("p_bad_to_good"),
             parameters.probability("loss_good"), parameters.probability("loss_bad")};
  }
  try {
    return std::make_unique<GilbertElliott>(by_burst ? rates_of_burst(loss_rate, mean_burst) : rates);
  } catch (const ConfigError& error) {
    throw ConfigError(parameters.where() + ": " + error.what());
  }
}

}  // namespace droptest::sim
