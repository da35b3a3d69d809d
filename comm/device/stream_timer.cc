// SPDX-License-Identifier: Apache-2.0
#include "comm/device/stream_timer.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "sim/error.h"

namespace droptest::comm {

void StreamTimer::start(Stream& stream) {
  DROPTEST_CHECK(!is_on(), "a timer of streams that was started twice");
  origin_.emplace(event());
  origin_->record(stream);
  origin_->wait_on_host();
  origin_time_ = clock_.now();
}

StreamTimer::Scope::Scope(StreamTimer* timer, std::size_t label, Stream* stream)
    : timer_(timer != nullptr && timer->is_on() && stream != nullptr ? timer : nullptr), stream_(stream) {
  if (timer_ != nullptr) timer_->begin(label, *stream_);
}

StreamTimer::Scope::~Scope() {
  if (timer_ != nullptr) timer_->end(*stream_);
}

void StreamTimer::begin(std::size_t label, Stream& stream) {
  Event begin = event();
  begin.record(stream);
  open_.push_back({label, number_of(stream), std::move(begin), std::nullopt});
}

void StreamTimer::end(Stream& stream) {
  DROPTEST_CHECK(!open_.empty(), "the end of a piece of work that has not begun");
  Pending piece = std::move(open_.back());
  open_.pop_back();
  try {
    piece.end.emplace(event());
    piece.end->record(stream);
  } catch (const DeviceError&) {
    return;  // the next call that waits for the device throws its error
  }
  done_.push_back(std::move(piece));
}

std::vector<StreamTimer::Piece> StreamTimer::take_done() {
  std::vector<Piece> pieces;
  while (!done_.empty() && done_.front().end->reached()) {
    pieces.push_back(piece_of(done_.front()));
    pool_.push_back(std::move(done_.front().begin));
    pool_.push_back(std::move(*done_.front().end));
    done_.pop_front();
  }
  return pieces;
}

std::vector<StreamTimer::Piece> StreamTimer::stop() {
  DROPTEST_CHECK(open_.empty(), "a timer of streams that stops within a piece of work");
  for (const Pending& pending : done_) pending.end->wait_on_host();
  std::vector<Piece> pieces = take_done();
  if (origin_) pool_.push_back(std::move(*origin_));
  origin_.reset();
  streams_.clear();
  return pieces;
}

Event StreamTimer::event() {
  if (pool_.empty()) return Event(Event::Timing::kOn);
  Event last = std::move(pool_.back());
  pool_.pop_back();
  return last;
}

std::size_t StreamTimer::number_of(const Stream& stream) {
  const auto found = std::find(streams_.begin(), streams_.end(), &stream);
  if (found != streams_.end()) return static_cast<std::size_t>(std::distance(streams_.begin(), found));
  streams_.push_back(&stream);
  return streams_.size() - 1;
}

StreamTimer::Piece StreamTimer::piece_of(const Pending& pending) const {
  const auto time_of = [this](const Event& event) {
    return origin_time_ + std::chrono::duration_cast<Clock::TimePoint::duration>(
                              std::chrono::duration<double>(event.seconds_since(*origin_)));
  };
  return {pending.label, pending.stream, time_of(pending.begin), time_of(*pending.end)};
}

}  // namespace droptest::comm
