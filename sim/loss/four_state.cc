// SPDX-License-Identifier: Apache-2.0
// States are counted from 0 here: state s is netem's s + 1.
#include "sim/loss/four_state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "sim/error.h"
#include "sim/loss/mask_writer.h"
#include "sim/loss/probability.h"
#include "sim/random/draw_words.h"
#include "sim/random/threshold.h"

namespace droptest::sim {
namespace {

constexpr unsigned kGap = 0;
constexpr unsigned kInBurst = 1;
constexpr unsigned kLost = 2;
constexpr unsigned kLostAlone = 3;
constexpr std::size_t kStates = 4;
constexpr std::size_t kTileWords = 64;

void require(bool holds, const char* what, double got, const char* want) {
  if (!holds) throw ConfigError(std::string("four_state: ") + what + ": got " + shortest_text(got) + ", want " + want);
}

std::uint64_t threshold_of_sum(double p) { return p >= 1 ? kCertain : probability_threshold(p); }

}  // namespace

struct FourState::Word {
  std::uint64_t leaves_gap;  ///< bit i: draw i leaves state 1
  std::array<std::uint32_t, 64> draws;
};

FourState::FourState(const FourStateRates& rates) : rates_(rates) {
  require_drawable("four_state: p13", rates.p13);
  require_drawable("four_state: p31", rates.p31);
  require_drawable("four_state: p32", rates.p32);
  require_drawable("four_state: p23", rates.p23);
  require_drawable("four_state: p14", rates.p14);
  constexpr double kRounding = 1e-12;  // sums such as 0.3 + 0.7
  require(rates.p13 + rates.p14 <= 1 + kRounding, "p13 + p14", rates.p13 + rates.p14, "a number in [0, 1]");
  require(rates.p31 + rates.p32 <= 1 + kRounding, "p31 + p32", rates.p31 + rates.p32, "a number in [0, 1]");
  require(rates.p13 == 0 || rates.p31 > 0, "p31", rates.p31, "a number above 0, as p13 is: else a burst never ends");
  require(rates.p13 == 0 || rates.p32 == 0 || rates.p23 > 0, "p23", rates.p23,
          "a number above 0, as p32 is: else deliveries within a burst never end");
  // Balance: pi1 p13 = pi3 p31, pi3 p32 = pi2 p23, pi1 p14 = pi4. The unit here is pi1.
  const double lost = rates.p13 == 0 ? 0 : rates.p13 / rates.p31;
  const double in_burst = lost == 0 || rates.p32 == 0 ? 0 : lost * rates.p32 / rates.p23;
  const double all = 1 + rates.p14 + lost + in_burst;
  shares_ = {1 / all, in_burst / all, lost / all, rates.p14 / all};

  to_lost_ = probability_threshold(rates.p13);
  leaves_ = threshold_of_sum(rates.p13 + rates.p14);
  enters_ = probability_threshold(rates.p23);
  stays_ = kCertain - threshold_of_sum(rates.p31 + rates.p32);
  stays_in_burst_ = std::max(stays_, kCertain - probability_threshold(rates.p31));
  const double look_back = mean_look_back();
  if (!(look_back <= kMostLookBack)) {
    throw ConfigError("four_state: got a chain that " +
                      (std::isinf(look_back)
                           ? std::string("alternates for ever")
                           : "shows its state after " + shortest_text(std::ceil(look_back)) + " packets on average") +
                      ", want one that does within 1000000 packets");
  }
}

unsigned FourState::next(unsigned state, std::uint64_t draw) const {
  switch (state) {
    case kGap:
      return draw < to_lost_ ? kLost : draw < leaves_ ? kLostAlone : kGap;
    case kInBurst:
      return draw < enters_ ? kLost : kInBurst;
    case kLost:
      return draw < stays_ ? kLost : draw < stays_in_burst_ ? kInBurst : kGap;
    default:
      return kGap;
  }
}

FourState::Word FourState::read_word(std::uint64_t seed, const Link& link, std::uint64_t word) const {
  Word result;
  result.draws = draw_values(seed, link, Purpose::kLossTransition, word);
  result.leaves_gap = 0;
  for (std::size_t i = 0; i < 64; ++i) result.leaves_gap |= std::uint64_t{result.draws[i] < leaves_} << i;
  return result;
}

std::uint64_t FourState::walk(const Word& word, unsigned& state) const {
  std::uint64_t lost = 0;
  for (unsigned i = 0; i < 64; ++i) {
    if (state == kGap) {
      const std::uint64_t rest = word.leaves_gap >> i;
      if (rest == 0) break;
      i += static_cast<unsigned>(std::countr_zero(rest));
    }
    state = next(state, word.draws[i]);
    lost |= std::uint64_t{state >= kLost} << i;
  }
  return lost;
}

// `after` maps a state at the beginning of the words read so far to the one before `word`. A word further back is read
// until all states that recur have one image.
unsigned FourState::state_before(std::uint64_t seed, const Link& link, std::uint64_t word) const {
  std::array<unsigned, kStates> after = {0, 1, 2, 3};
  for (;;) {
    const Word draws = read_word(seed, link, --word);
    std::array<unsigned, kStates> image{};
    bool agree = true;
    for (unsigned state = 0; state < kStates; ++state) {
      unsigned moved = recurs(state) ? state : kGap;  // the gap always recurs
      walk(draws, moved);
      image[state] = after[moved];
      agree = agree && image[state] == image[0];
    }
    if (agree) return image[0];
    after = image;
  }
}

void FourState::draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const {
  MaskWriter writer(first_packet, lost);
  if (writer.words_left() == 0) return;
  std::uint64_t word = writer.first_word();
  unsigned state = state_before(seed, link, word);
  std::array<std::uint64_t, kTileWords> tile;
  while (writer.words_left() > 0) {
    const std::span<std::uint64_t> words(tile.data(), std::min<std::uint64_t>(kTileWords, writer.words_left()));
    draws_below(seed, link, Purpose::kLossTransition, word, leaves_, words);
    for (std::uint64_t& fates : words) {
      if (state != kGap || fates != 0) {
        fates = walk({fates, draw_values(seed, link, Purpose::kLossTransition, word)}, state);
      }
      ++word;
    }
    writer.put(words);
  }
}

double FourState::loss_rate() const { return shares_[kLost] + shares_[kLostAlone]; }

// A burst begins from a delivered packet, and goes on only within state 3.
double FourState::p_burst_begins() const {
  return shares_[kGap] * (rates_.p13 + rates_.p14) + shares_[kInBurst] * rates_.p23;
}

double FourState::mean_burst_packets() const { return loss_rate() == 0 ? 0 : loss_rate() / p_burst_begins(); }

double FourState::mean_gap_packets() const {
  if (loss_rate() == 0) return std::numeric_limits<double>::infinity();
  return (shares_[kGap] + shares_[kInBurst]) / p_burst_begins();
}

double FourState::burst_at_least(std::uint64_t packets) const {
  if (loss_rate() == 0) return 0;
  if (packets <= 1) return 1;
  const double in_state_3 = (shares_[kGap] * rates_.p13 + shares_[kInBurst] * rates_.p23) / p_burst_begins();
  return in_state_3 * std::pow(std::max(0.0, 1 - rates_.p31 - rates_.p32), static_cast<double>(packets - 1));
}

FateChain FourState::chain_of_fates() const {
  const FourStateRates& c = rates_;
  return FateChain::of_four(
      {{{shares_[kGap], 0, {1 - c.p13 - c.p14, 0, c.p13, c.p14}, {to_lost_, leaves_}, {2, 3, 0}},
        {shares_[kInBurst], 0, {0, 1 - c.p23, c.p23, 0}, {enters_, kCertain}, {2, 1, 1}},
        {shares_[kLost], 1, {c.p31, c.p32, 1 - c.p31 - c.p32, 0}, {stays_, stays_in_burst_}, {2, 1, 0}},
        {shares_[kLostAlone], 1, {1, 0, 0, 0}, {kCertain, kCertain}, {0, 0, 0}}}});
}

double FourState::autocorrelation(std::uint64_t lag) const {
  if (lag == 0) return 1;
  const double variance = loss_rate() * (1 - loss_rate());
  if (variance == 0) return 0;
  return chain_of_fates().fate_covariance(lag) / variance;
}

// The set of states that are possible, given the draws since some time, is a chain over sets; the look-back is the time
// until one state is left. Its mean solves T(set) = 1 + sum over draws of P(draw) T(image of set), by elimination.
double FourState::mean_look_back() const {
  constexpr std::size_t kSets = 16;
  std::vector<std::uint64_t> cuts = {0, to_lost_, leaves_, enters_, stays_, stays_in_burst_, kCertain};
  std::sort(cuts.begin(), cuts.end());
  std::array<std::array<double, kSets + 1>, kSets> rows{};  // last column: the right-hand side
  const auto is_known = [](std::size_t set) { return std::popcount(set) <= 1; };
  for (std::size_t set = 0; set < kSets; ++set) {
    rows[set][set] = 1;
    if (is_known(set)) continue;
    rows[set][kSets] = 1;
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
      if (cuts[c] == cuts[c + 1]) continue;
      std::size_t image = 0;
      for (unsigned state = 0; state < kStates; ++state) {
        if ((set >> state & 1) != 0) image |= std::size_t{1} << next(state, cuts[c]);
      }
      if (!is_known(image)) {
        rows[set][image] -= static_cast<double>(cuts[c + 1] - cuts[c]) / static_cast<double>(kCertain);
      }
    }
  }
  // Only the sets that can be reached matter: others may never shrink.
  std::size_t start = 0;
  for (unsigned state = 0; state < kStates; ++state) start |= std::size_t{recurs(state)} << state;
  if (is_known(start)) return 0;
  std::array<bool, kSets> reached{};
  reached[start] = true;
  for (std::size_t pass = 0; pass < kSets; ++pass) {
    for (std::size_t set = 0; set < kSets; ++set) {
      for (std::size_t image = 0; reached[set] && image < kSets; ++image) {
        if (rows[set][image] != 0) reached[image] = true;
      }
    }
  }
  for (std::size_t pivot = 0; pivot < kSets; ++pivot) {
    if (!reached[pivot] || pivot == start) continue;
    if (rows[pivot][pivot] < 1e-12) return std::numeric_limits<double>::infinity();
    for (std::size_t row = 0; row < kSets; ++row) {
      if (row == pivot || !reached[row] || rows[row][pivot] == 0) continue;
      const double factor = rows[row][pivot] / rows[pivot][pivot];
      for (std::size_t column = 0; column <= kSets; ++column) rows[row][column] -= factor * rows[pivot][column];
    }
  }
  if (rows[start][start] < 1e-12) return std::numeric_limits<double>::infinity();
  return rows[start][kSets] / rows[start][start];
}

std::string FourState::describe() const {
  return "four_state(p13=" + shortest_text(rates_.p13) + ", p31=" + shortest_text(rates_.p31) +
         ", p32=" + shortest_text(rates_.p32) + ", p23=" + shortest_text(rates_.p23) +
         ", p14=" + shortest_text(rates_.p14) + ")";
}

std::unique_ptr<LossProcess> make_four_state(const Parameters& parameters) {
  parameters.allow_only({"model", "p13", "p31", "p32", "p23", "p14"});
  const auto rate = [&parameters](const char* name, double otherwise) {
    return parameters.has(name) ? parameters.probability(name) : otherwise;
  };
  FourStateRates rates;
  rates.p13 = parameters.probability("p13");
  rates.p31 = rate("p31", 1 - rates.p13);
  rates.p32 = rate("p32", 0);
  rates.p23 = rate("p23", 1);
  rates.p14 = rate("p14", 0);
  try {
    return std::make_unique<FourState>(rates);
  } catch (const ConfigError& error) {
    throw ConfigError(parameters.where() + ": " + error.what());
  }
}

}  // namespace droptest::sim
