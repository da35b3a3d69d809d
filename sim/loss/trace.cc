// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/trace.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "sim/error.h"
#include "sim/loss/trace_format.h"
#include "sim/random/philox.h"

namespace droptest::sim {
namespace {

constexpr std::uint64_t kShortestCopied = 4096;  ///< traces of fewer packets are stored several times in a row

std::uint64_t low_bits(std::uint64_t count) {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

}  // namespace

Trace::Trace(const PacketMask& fates, TraceStart start, std::string name)
    : start_(start),
      name_(std::move(name)),
      length_(fates.size()),
      copies_(length_ == 0 ? 0 : std::max<std::uint64_t>(1, kShortestCopied / length_)) {
  if (length_ == 0) throw ConfigError("trace: " + name_ + ": got 0 packets, want at least 1");
  const std::uint64_t held = copies_ * length_;
  words_.resize(held / 64 + 2);
  if (copies_ == 1) {
    std::copy(fates.words().begin(), fates.words().end(), words_.begin());
  } else {
    for (std::uint64_t place = 0; place < held; ++place) {
      words_[place >> 6] |= std::uint64_t{fates.lost(place % length_)} << (place & 63);
    }
  }
  std::uint64_t lost = 0;
  for (const std::uint64_t word : words_) {
    lost_to_word_.push_back(lost);
    lost += static_cast<std::uint64_t>(std::popcount(word));
  }
  lost_ = lost_before(length_);
  if (lost_ == 0 || lost_ == length_) return;
  // The walk goes around the circle from the packet after a delivery.
  std::uint64_t first = 0;
  while (lost_at(first)) ++first;
  std::uint64_t run = 0;
  for (std::uint64_t i = 1; i <= length_; ++i) {
    if (lost_at((first + i) % length_)) {
      ++run;
    } else if (run > 0) {
      ++bursts_[run];
      ++burst_count_;
      run = 0;
    }
  }
}

std::uint64_t Trace::lost_before(std::uint64_t place) const {
  return lost_to_word_[place >> 6] +
         static_cast<std::uint64_t>(std::popcount(words_[place >> 6] & low_bits(place & 63)));
}

std::uint64_t Trace::place_of(std::uint64_t seed, const Link& link, std::uint64_t packet) const {
  std::uint64_t start = 0;
  if (start_ == TraceStart::kRandom) {
    const PhiloxBlock block = philox(seed, link_counter(link, Purpose::kTraceStart, 0));
    start = (std::uint64_t{block[1]} << 32 | block[0]) % length_;
  }
  return (start + packet % length_) % length_;
}

void Trace::draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const {
  draw_message(seed, link, MessagePosition{first_packet, 0, 0, std::nullopt}, lost);
}

void Trace::draw_message(std::uint64_t seed, const Link& link, const MessagePosition& place, PacketMask& lost) const {
  const std::uint64_t packets = lost.size();
  lost.resize(packets);
  const std::uint64_t held = copies_ * length_;
  std::uint64_t from = place_of(seed, link, place.first_packet - place.origin);
  // Copies 64 packets of the trace at a time, or fewer at the end of the mask and of the stored copies of the trace.
  for (std::uint64_t packet = 0; packet < packets;) {
    const std::uint64_t count = std::min({std::uint64_t{64}, packets - packet, held - from});
    const unsigned shift = from & 63;
    const std::uint64_t low = words_[from >> 6] >> shift;
    const std::uint64_t high = shift == 0 ? 0 : words_[(from >> 6) + 1] << (64 - shift);
    const std::uint64_t bits = (low | high) & low_bits(count);
    const unsigned offset = packet & 63;
    lost.words()[packet >> 6] |= bits << offset;
    if (offset + count > 64) lost.words()[(packet >> 6) + 1] |= bits >> (64 - offset);
    packet += count;
    from = (from + count) % held;
  }
}

double Trace::loss_rate() const { return static_cast<double>(lost_) / static_cast<double>(length_); }

double Trace::mean_burst_packets() const {
  if (lost_ == 0) return 0;
  if (burst_count_ == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(lost_) / static_cast<double>(burst_count_);
}

double Trace::mean_gap_packets() const {
  if (lost_ == length_) return 0;
  if (burst_count_ == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(length_ - lost_) / static_cast<double>(burst_count_);
}

double Trace::burst_at_least(std::uint64_t packets) const {
  if (lost_ == 0) return 0;
  if (burst_count_ == 0) return 1;
  std::uint64_t count = 0;
  for (auto burst = bursts_.lower_bound(packets); burst != bursts_.end(); ++burst) count += burst->second;
  return static_cast<double>(count) / static_cast<double>(burst_count_);
}

// Whole turns lose the same wherever they begin; the rest is a window that slides around the circle.
double Trace::lost_count_variance(std::uint64_t n) const {
  const std::uint64_t window = n % length_;
  const double mean = static_cast<double>(window) * loss_rate();
  std::uint64_t inside = lost_before(window);
  double squares = 0;
  for (std::uint64_t begin = 0; begin < length_; ++begin) {
    const double deviation = static_cast<double>(inside) - mean;
    squares += deviation * deviation;
    inside += std::uint64_t{lost_at((begin + window) % length_)} - std::uint64_t{lost_at(begin)};
  }
  return squares / static_cast<double>(length_);
}

LostCount Trace::message_count(std::uint64_t seed, const Link& link, const MessagePosition& place,
                               std::uint64_t n) const {
  const std::uint64_t from = place_of(seed, link, place.first_packet - place.origin);
  const std::uint64_t to = from + n % length_;
  const std::uint64_t rest =
      to <= length_ ? lost_before(to) - lost_before(from) : lost_ - lost_before(from) + lost_before(to - length_);
  return {static_cast<double>(n / length_ * lost_ + rest), 0};
}

std::string Trace::describe() const {
  return "trace(file=" + name_ + ", packets=" + std::to_string(length_) + ", lost=" + std::to_string(lost_) +
         ", start=" + (start_ == TraceStart::kRandom ? "random" : "beginning") + ")";
}

std::unique_ptr<LossProcess> make_trace(const Parameters& parameters) {
  parameters.allow_only({"model", "file", "start", "sha256", "contents"});
  const std::string file = parameters.text("file");
  TraceStart start = TraceStart::kBeginning;
  if (parameters.has("start")) {
    const std::string named = parameters.text("start");
    if (named != "beginning" && named != "random") parameters.fail("start", "one of beginning, random");
    if (named == "random") start = TraceStart::kRandom;
  }
  return std::make_unique<Trace>(parse_trace(parameters.text("contents"), parameters.where() + ": " + file), start,
                                 file);
}

}  // namespace droptest::sim
