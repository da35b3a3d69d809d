// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/counted_fates.h"

#include <algorithm>
#include <span>

#include "sim/error.h"

namespace droptest::sim {

void CountedFates::draw(const LossProcess& process, std::uint64_t seed, std::uint64_t first_packet, PacketMask& lost) {
  DROPTEST_CHECK(!process.counts_by_message(), process.describe() + " looks at more than the index of packets");
  const std::uint64_t packets = lost.size();
  if (packets == 0) return;
  if (packets > kMostPackets) {
    process.draw(seed, link_, first_packet, lost);
    add(first_packet, first_packet, lost);
    return;
  }
  if (process_ != &process || seed_ != seed || first_packet != next_) begin_run(process, seed, first_packet);
  if (next_ - begin_ + packets > words_ * kWordPackets) {
    draw_ahead(packets, lost);
    lost.resize(packets);
  }
  copy_drawn(next_, packets, lost.words().data());
  next_ += packets;
}

void CountedFates::begin_run(const LossProcess& process, std::uint64_t seed, std::uint64_t first_packet) {
  end_run(first_packet);
  process_ = &process;
  seed_ = seed;
  run_begin_ = counted_ = next_ = first_packet;
  begin_ = first_packet / kWordPackets * kWordPackets;
  words_ = 0;
}

// Draws ahead at most as many packets as the run has used, so that a link of few messages draws few unused fates.
void CountedFates::draw_ahead(std::uint64_t packets, PacketMask& buffer) {
  const auto words_until = [this](std::uint64_t packet) { return (packet - begin_ + kWordPackets - 1) / kWordPackets; };
  if (words_until(next_ + packets) > kMostWords) make_room();
  const std::uint64_t needed = words_until(next_ + packets);
  const std::uint64_t used = (next_ - run_begin_) / kWordPackets;
  const std::uint64_t wanted = std::min(kMostWords, needed + std::min(kMostWordsAhead, used));
  buffer.resize((wanted - words_) * kWordPackets);
  process_->draw(seed_, link_, begin_ + words_ * kWordPackets, buffer);
  std::ranges::copy(buffer.words(), &drawn_[words_]);
  words_ = wanted;
}

// Counts and drops the words that are used up: nearly all, since the run has used the larger part of the room.
void CountedFates::make_room() {
  const std::uint64_t used_words = (next_ - begin_) / kWordPackets;
  const std::uint64_t begin = begin_ + used_words * kWordPackets;
  count_until(begin);
  std::copy(&drawn_[used_words], &drawn_[words_], drawn_.data());
  begin_ = begin;
  words_ -= used_words;
}

// Copies fates that were drawn; bits past the last packet are clear.
void CountedFates::copy_drawn(std::uint64_t first_packet, std::uint64_t packets, std::uint64_t* words) const {
  const std::uint64_t offset = (first_packet - begin_) % kWordPackets;
  const std::uint64_t* from = &drawn_[(first_packet - begin_) / kWordPackets];
  const std::uint64_t whole = packets / kWordPackets;
  const std::uint64_t rest = packets % kWordPackets;
  // Each word comes from two. The second one is shifted in two steps, because a shift by 64 is undefined.
  for (std::uint64_t w = 0; w < whole; ++w) words[w] = from[w] >> offset | from[w + 1] << 1 << (63 - offset);
  if (rest == 0) return;
  const std::uint64_t last = from[whole] >> offset | from[whole + 1] << 1 << (63 - offset);
  words[whole] = last & ((std::uint64_t{1} << rest) - 1);
}

void CountedFates::count_until(std::uint64_t packet) {
  const std::uint64_t packets = packet - counted_;
  if (packets == 0) return;
  std::array<std::uint64_t, kMostWords> words;
  copy_drawn(counted_, packets, words.data());
  const FatesView used({words.data(), (packets + kWordPackets - 1) / kWordPackets}, packets);
  digest_.add(counted_, used);
  bursts_.add(used);
  counted_ = packet;
}

// Counts all that was used. The next message has draws from next_draw on.
void CountedFates::end_run(std::uint64_t next_draw) {
  count_until(next_);
  if (next_draw != next_) bursts_.interrupt();
  process_ = nullptr;
}

void CountedFates::add(std::uint64_t first_packet, std::uint64_t first_draw, const PacketMask& lost) {
  end_run(first_draw);
  digest_.add(first_packet, lost);
  bursts_.add(lost);
  counted_ = next_ = first_draw + lost.size();
}

void CountedFates::visit_state(StateVisitor& visitor) {
  count_until(next_);
  process_ = nullptr;
  visit_values(visitor, digest_, bursts_, next_);
  counted_ = next_;
}

std::uint64_t CountedFates::digest() const {
  CountedFates all = *this;
  all.count_until(next_);
  return all.digest_.value();
}

BurstHistogram CountedFates::bursts() const {
  CountedFates all = *this;
  all.count_until(next_);
  return all.bursts_;
}

}  // namespace droptest::sim
