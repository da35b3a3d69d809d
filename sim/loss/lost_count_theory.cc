// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/lost_count_theory.h"

#include <algorithm>
#include <iterator>

namespace droptest::sim {
namespace {

/// Largest number of stretches if messages come in the order of their draws: none joins an earlier stretch.
constexpr std::size_t kMostInOrder = 16;

void add_to(StateWeights& sum, const StateWeights& weights) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += weights[i];
}

}  // namespace

void LostCountTheory::fold(const Stretch& stretch, LostCount& sum) {
  const auto packets = static_cast<double>(stretch.packets);
  sum.mean += packets * stretch.process->loss_rate();
  const std::optional<FateChain> chain = stretch.chain();
  if (!chain || stretch.packet_microseconds == 0) {
    sum.variance += stretch.process->lost_count_variance(stretch.packets);
  } else {
    sum.variance += chain->lost_count_variance(stretch.packets);
  }
  if (chain && stretch.before != StateWeights{}) {
    sum.variance += 2 * chain->covariance(stretch.before, stretch.packets);
  }
}

void LostCountTheory::add_alone(const LossProcess& process, std::uint64_t seed, const Link& link,
                                const MessagePosition& place, std::uint64_t packets) {
  const LostCount added = process.message_count(seed, link, place, packets);
  ended_.mean += added.mean;
  ended_.variance += added.variance;
}

void LostCountTheory::add(const LossProcess& process, std::uint64_t step, std::uint64_t seed, const Link& link,
                          const MessagePosition& place, std::uint64_t packets, MessageOrder order) {
  if (packets == 0) return;
  if (place.times && place.times->departs_microseconds) {
    ClockMemory& memory = clock_[(place.times->is_from_send ? 2U : 0U) + (place.times->is_stopped ? 1U : 0U)];
    if (const std::optional<LostCount> added = process.count_by_clock(place, packets, memory)) {
      ended_.mean += added->mean;
      ended_.variance += added->variance;
      return;
    }
  }
  const std::uint64_t first = process.first_draw(place);
  const double packet_microseconds = place.times ? place.times->packet_microseconds : 0;
  if (&process == process_ && first == next_ && packet_microseconds == packet_microseconds_) {
    grown_ += packets;
    next_ += packets;
    return;
  }
  // The place of the message fixes its fates, or their correlation with other fates is not known.
  if (process.counts_by_message() && !process.fate_chain(packet_microseconds)) {
    return add_alone(process, seed, link, place, packets);
  }
  write_back();
  const std::uint64_t end = first + packets;
  const auto behind = stretches_.lower_bound(first);
  const bool is_used = behind != stretches_.end() && behind->first < end;
  const bool was_used =
      behind != stretches_.begin() && std::prev(behind)->first + std::prev(behind)->second.packets > first;
  if (end < first || is_used || was_used) return add_alone(process, seed, link, place, packets);
  const auto own = place_message(first, {step, packet_microseconds, packets, {}, &process});
  if (stretches_.size() > (order == MessageOrder::kAny ? kMostStretches : kMostInOrder)) end_farthest(first, own);
  process_ = std::next(own) == stretches_.end() ? &process : nullptr;
  next_ = end;
  packet_microseconds_ = packet_microseconds;
  first_ = own->first;
}

void LostCountTheory::write_back() {
  if (grown_ > 0) stretches_.at(first_).packets += grown_;
  grown_ = 0;
  process_ = nullptr;
}

// Lengthens the stretch that the message follows on, or begins a new one; then joins it with the stretch that follows
// on the message.
LostCountTheory::Stretches::iterator LostCountTheory::place_message(std::uint64_t first, Stretch message) {
  const auto follows = [](const Stretch& next, std::uint64_t at, const Stretches::value_type& stretch) {
    return stretch.first + stretch.second.packets == at && stretch.second.process == next.process &&
           stretch.second.packet_microseconds == next.packet_microseconds;
  };
  const auto behind = stretches_.lower_bound(first);
  correlate(message, first + message.packets, behind, stretches_.end());
  auto own = behind;
  if (behind != stretches_.begin() && follows(message, first, *std::prev(behind))) {
    own = std::prev(behind);
    own->second.packets += message.packets;
  } else {
    message.before = losses_before(first, message, behind);
    own = stretches_.insert(behind, {first, message});
  }
  if (behind != stretches_.end() && follows(behind->second, behind->first, *own)) {
    own->second.packets += behind->second.packets;
    stretches_.erase(behind);
  }
  return own;
}

// Adds the losses of a message to those before the stretches behind it.
void LostCountTheory::correlate(const Stretch& message, std::uint64_t end, Stretches::iterator behind,
                                Stretches::iterator last) {
  if (behind == last) return;
  const std::optional<FateChain> chain = message.chain();
  for (; chain && behind != last; ++behind) {
    const std::optional<FateChain> later = behind->second.chain();
    if (!later) continue;
    const StateWeights losses = later->spread(later->loss_under(*chain), message.packets);
    add_to(behind->second.before, later->later(losses, behind->first - end));
  }
}

// The nearest stretch before with the same chain has all losses before it in its own weights.
StateWeights LostCountTheory::losses_before(std::uint64_t first, const Stretch& stretch,
                                            Stretches::const_iterator behind) const {
  StateWeights all{};
  const std::optional<FateChain> chain = stretch.chain();
  const LossProcess* process = nullptr;  // the process behind `loss`
  StateWeights loss{};
  while (chain && behind != stretches_.begin()) {
    --behind;
    const Stretch& earlier = behind->second;
    const std::optional<FateChain> other = earlier.chain();
    if (!other) continue;
    if (earlier.process != process) loss = chain->loss_under(*other);
    process = earlier.process;
    StateWeights losses = chain->spread(loss, earlier.packets);
    const bool is_same = *other == *chain;
    if (is_same) add_to(losses, chain->later(earlier.before, earlier.packets));
    add_to(all, chain->later(losses, first - (behind->first + earlier.packets)));
    if (is_same) break;
  }
  return all;
}

void LostCountTheory::end_farthest(std::uint64_t from, Stretches::const_iterator own) {
  const auto first = stretches_.cbegin();
  const auto last = std::prev(stretches_.cend());
  const bool is_first = last == own || (first != own && from - first->first > last->first - from);
  const auto farthest = is_first ? first : last;
  fold(farthest->second, ended_);
  stretches_.erase(farthest);
}

LostCount LostCountTheory::total() const {
  LostCount sum = ended_;
  for (const auto& [first, stretch] : stretches_) {
    Stretch whole = stretch;
    if (first == first_) whole.packets += grown_;
    fold(whole, sum);
  }
  sum.variance = std::max(0.0, sum.variance);
  return sum;
}

void LostCountTheory::visit_state(StateVisitor& visitor, const LossProcess* configured) {
  const StateVisitor::Part part(visitor, typeid(LostCountTheory), StateVisitor::Place::kMember);
  write_back();
  visit_values(visitor, ended_, stretches_, clock_);
  if (configured == nullptr) return stretches_.clear();
  for (auto& [first, stretch] : stretches_) stretch.process = &configured->at_step(stretch.step);
}

}  // namespace droptest::sim
