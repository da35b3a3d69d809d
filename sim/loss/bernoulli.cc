// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/bernoulli.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "sim/loss/mask_writer.h"
#include "sim/loss/probability.h"
#include "sim/random/draw_words.h"
#include "sim/random/threshold.h"

namespace droptest::sim {

Bernoulli::Bernoulli(double p_loss) : p_(p_loss), threshold_(0) {
  require_drawable("bernoulli: loss_rate", p_loss);
  threshold_ = probability_threshold(p_loss);
}

void Bernoulli::draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const {
  MaskWriter writer(first_packet, lost);
  std::array<std::uint64_t, 64> tile;
  for (std::uint64_t word = writer.first_word(); writer.words_left() > 0;) {
    const std::span<std::uint64_t> words(tile.data(), std::min<std::uint64_t>(tile.size(), writer.words_left()));
    draws_below(seed, link, Purpose::kLossTransition, word, threshold_, words);
    writer.put(words);
    word += words.size();
  }
}

// Runs of either outcome are geometric.
double Bernoulli::mean_burst_packets() const { return p_ == 0 ? 0 : 1 / (1 - p_); }

double Bernoulli::mean_gap_packets() const { return p_ == 1 ? 0 : 1 / p_; }

double Bernoulli::burst_at_least(std::uint64_t packets) const {
  return p_ == 0 ? 0 : std::pow(p_, static_cast<double>(packets) - 1);
}

double Bernoulli::gap_at_least(std::uint64_t packets) const {
  return p_ == 1 ? 0 : std::exp((static_cast<double>(packets) - 1) * std::log1p(-p_));
}

double Bernoulli::lost_count_variance(std::uint64_t n) const { return static_cast<double>(n) * p_ * (1 - p_); }

std::optional<FateChain> Bernoulli::fate_chain(double /*packet_microseconds*/) const {
  const FateChain::State arrives{1 - p_, 0, {1 - p_, p_, 0, 0}, {threshold_, kCertain}, {1, 0, 0}};
  FateChain::State is_lost = arrives;
  is_lost.share = p_;
  is_lost.loss_rate = 1;
  return FateChain::of_two(arrives, is_lost);
}

std::string Bernoulli::describe() const { return "bernoulli(loss_rate=" + shortest_text(p_) + ")"; }

std::unique_ptr<LossProcess> make_bernoulli(const Parameters& parameters) {
  parameters.allow_only({"model", "loss_rate"});
  const double p = parameters.probability("loss_rate");
  if (!is_drawable(p)) parameters.fail("loss_rate", kDrawable);
  return std::make_unique<Bernoulli>(p);
}

}  // namespace droptest::sim
