// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/pattern.h"

#include <algorithm>

#include "sim/error.h"
#include "sim/loss/probability.h"

namespace droptest::sim {
namespace {

/// Sum over k = 1 .. m of k^2.
double sum_of_squares(double m) { return m * (m + 1) * (2 * m + 1) / 6; }

/// Sets bits begin to end - 1.
void lose(PacketMask& lost, std::uint64_t begin, std::uint64_t end) {
  while (begin < end) {
    const std::uint64_t word = begin >> 6;
    const std::uint64_t word_end = std::min(end, (word + 1) << 6);
    const std::uint64_t ones = word_end - begin;
    const std::uint64_t bits = ones == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << ones) - 1;
    lost.words()[word] |= bits << (begin & 63);
    begin = word_end;
  }
}

}  // namespace

Pattern::Pattern(std::uint64_t lost, std::uint64_t delivered, std::uint64_t offset)
    : lost_(lost), period_(lost + delivered), offset_(offset) {
  const auto require = [](bool holds, const char* what, std::uint64_t got, const std::string& want) {
    if (!holds) throw ConfigError(std::string("pattern: ") + what + ": got " + std::to_string(got) + ", want " + want);
  };
  const std::string window = "an integer in [1, " + std::to_string(kLongestWindow) + "]";
  require(lost >= 1 && lost <= kLongestWindow, "lost packets", lost, window);
  require(delivered >= 1 && delivered <= kLongestWindow, "delivered packets", delivered, window);
  require(offset < period_, "offset", offset, "an integer below the period of " + std::to_string(period_) + " packets");
}

void Pattern::draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const {
  draw_message(seed, link, MessagePosition{first_packet, 0, 0, std::nullopt}, lost);
}

void Pattern::draw_message(std::uint64_t /*seed*/, const Link& /*link*/, const MessagePosition& place,
                           PacketMask& lost) const {
  const std::uint64_t packets = lost.size();
  lost.resize(packets);
  const std::uint64_t first = place_of(place.first_packet - place.origin);
  if (first < lost_) lose(lost, 0, std::min(packets, lost_ - first));
  for (std::uint64_t begin = period_ - first; begin < packets; begin += period_) {
    lose(lost, begin, begin + std::min(lost_, packets - begin));
  }
}

double Pattern::loss_rate() const { return static_cast<double>(lost_) / static_cast<double>(period_); }

// Whole periods lose the same number at any phase. The rest is the overlap of two arcs, `a` lost and r further packets,
// on a circle of T. The complements T - a and T - r have the same variance over the phase, and one of the two pairs
// covers no more than the circle. Let m <= M be the shorter and the longer arc. Their overlap is 1 to m - 1 at two
// phases each, m at M - m + 1 phases, and 0 at the others.
double Pattern::lost_count_variance(std::uint64_t n) const {
  std::uint64_t a = lost_;
  std::uint64_t r = n % period_;
  if (a + r > period_) {
    a = period_ - a;
    r = period_ - r;
  }
  const auto shorter = static_cast<double>(std::min(a, r));
  const auto longer = static_cast<double>(std::max(a, r));
  const auto period = static_cast<double>(period_);
  const double mean = shorter * longer / period;
  const double square =
      shorter == 0 ? 0 : (2 * sum_of_squares(shorter - 1) + (longer - shorter + 1) * shorter * shorter) / period;
  return std::max(0.0, square - mean * mean);
}

LostCount Pattern::message_count(std::uint64_t /*seed*/, const Link& /*link*/, const MessagePosition& place,
                                 std::uint64_t n) const {
  const std::uint64_t first = place_of(place.first_packet - place.origin);
  const std::uint64_t rest = n % period_;
  // Lost packets from place 0 on; first + rest covers two periods at most.
  const auto lost_before = [this](std::uint64_t packets) {
    return packets / period_ * lost_ + std::min(packets % period_, lost_);
  };
  return {static_cast<double>(n / period_ * lost_ + lost_before(first + rest) - lost_before(first)), 0};
}

double Pattern::all_arrive_probability(std::uint64_t packets) const {
  const std::uint64_t delivered = period_ - lost_;
  return packets > delivered ? 0 : static_cast<double>(delivered - packets + 1) / static_cast<double>(period_);
}

std::string Pattern::describe() const {
  return "pattern(lost_packets=" + std::to_string(lost_) + ", delivered_packets=" + std::to_string(period_ - lost_) +
         ", offset=" + std::to_string(offset_) + ")";
}

std::unique_ptr<LossProcess> make_pattern(const Parameters& parameters) {
  const auto most = static_cast<std::int64_t>(Pattern::kLongestWindow);
  std::int64_t lost = 1;
  std::int64_t delivered = 0;
  if (parameters.has("every")) {
    parameters.allow_only({"model", "every", "offset"});
    delivered = parameters.integer("every", 2, most) - 1;
  } else {
    parameters.allow_only({"model", "lost_packets", "delivered_packets", "offset"});
    lost = parameters.integer("lost_packets", 1, most);
    delivered = parameters.integer("delivered_packets", 1, most);
  }
  const std::int64_t offset = parameters.has("offset") ? parameters.integer("offset", 0, lost + delivered - 1) : 0;
  return std::make_unique<Pattern>(static_cast<std::uint64_t>(lost), static_cast<std::uint64_t>(delivered),
                                   static_cast<std::uint64_t>(offset));
}

}  // namespace droptest::sim
