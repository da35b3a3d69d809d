// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parameter_traffic.h"

#include <algorithm>
#include <array>
#include <utility>

#include "comm/tensor_operations.h"
#include "sim/error.h"

namespace droptest::models {

ParameterTraffic::ParameterTraffic(comm::Communicator& group, const ParameterTable& table, const ShardPlan& plan,
                                   Ops& ops, const ParameterArena& values, const ParameterArena& rounded,
                                   const ParameterArena& gradients, OffloadedState* offloaded)
    : group_(group),
      table_(table),
      plan_(plan),
      ops_(ops),
      values_(values),
      rounded_(rounded),
      gradients_(gradients),
      offloaded_(offloaded),
      units_(table.units.size(), State::kAbsent),
      gathers_(table.units.size()) {}

void ParameterTraffic::expect_gradients(MicroBatch micro_batch) {
  DROPTEST_CHECK(reductions_.empty() && !expects_, "gradients of two passes at once");
  expects_ = true;
  adds_ = plan_.options().reduces_each() && micro_batch == MicroBatch::kLater;
  next_bucket_ = 0;
  ready_.assign(table_.units.size(), false);
}

void ParameterTraffic::gradients_ready(std::size_t unit) {
  if (!expects_) return;
  ready_[unit] = true;
  const auto first_missing = static_cast<std::size_t>(std::find(ready_.begin(), ready_.end(), false) - ready_.begin());
  for (; next_bucket_ < plan_.buckets().size() && plan_.buckets()[next_bucket_].last_unit < first_missing;
       ++next_bucket_) {
    start_reduction(next_bucket_);
  }
  expects_ = next_bucket_ < plan_.buckets().size();
}

void ParameterTraffic::start_reduction(std::size_t i) {
  const Bucket& bucket = plan_.buckets()[i];
  const comm::Message message{sim::TrafficClass::kDpGradient, bucket.gradients, bucket.layer};
  traffic_ = ops_.begin_traffic();
  const comm::Tensor all = as_sent(gradients_.part(bucket.offset, bucket.count));
  if (plan_.options().zero == 0) {
    reductions_.push_back({i, group_.start_all_reduce(all, all, comm::ReduceOp::kMean, message)});
    return;
  }
  const OwnPart& part = plan_.own_of_bucket(i);
  // If reductions are added up afterwards, they are in place.
  const comm::Tensor own = as_sent(adds_ ? gradients_.part(part.offset, part.count) : gradients_.own(part));
  reductions_.push_back({i, group_.start_reduce_scatter(all, own, bucket.counts, comm::ReduceOp::kMean, message)});
}

void ParameterTraffic::finish_oldest_reduction() {
  UnderWay oldest = std::move(reductions_.front());
  reductions_.pop_front();
  oldest.work.wait();
  if (!adds_) return;
  ops_.end_traffic();
  const OwnPart& part = plan_.own_of_bucket(oldest.bucket);
  ops_.accumulate(gradients_.part(part.offset, part.count), gradients_.own(part));
}

void ParameterTraffic::make_room_for_gradients(std::size_t unit) {
  if (gradients_.holds() == ParameterArena::Holds::kAll) return;
  bool waited = false;
  while (!reductions_.empty()) {
    const std::size_t of = plan_.buckets()[reductions_.front().bucket].last_unit;
    // Every second block has the same room. The reductions of earlier blocks are already finished.
    const bool shares =
        of == unit || (table_.units[of].layer != kOutsideOfBlocks && table_.units[unit].layer != kOutsideOfBlocks &&
                       table_.units[of].layer >= table_.units[unit].layer + 2);
    if (!shares) break;
    finish_oldest_reduction();
    waited = true;
  }
  if (waited) ops_.end_traffic();
}

void ParameterTraffic::finish_gradients() {
  DROPTEST_CHECK(!expects_, "gradients that no pass made ready");
  while (!reductions_.empty()) finish_oldest_reduction();
  ops_.end_traffic();
}

comm::Tensor ParameterTraffic::own_values(std::size_t bucket) const {
  return brings_values() ? offloaded_->own_of_bucket(bucket) : values_.own(plan_.own_of_bucket(bucket));
}

comm::Work ParameterTraffic::start_gather(std::size_t i, const comm::Tensor& own, const comm::Tensor& whole) {
  const Bucket& bucket = plan_.buckets()[i];
  traffic_ = ops_.begin_traffic();
  return group_.start_all_gather(as_sent(own), as_sent(whole), bucket.counts,
                                 {sim::TrafficClass::kParameterGather, bucket.parameters, bucket.layer});
}

comm::Work ParameterTraffic::start_gather(std::size_t i) {
  const Bucket& bucket = plan_.buckets()[i];
  return start_gather(i, own_values(i), values_.part(bucket.offset, bucket.count));
}

// Two buckets are processed at once, each in a window of memory.
void ParameterTraffic::gather_offloaded_values() {
  constexpr std::size_t kWindows = 2;
  std::array<UnderWay, kWindows> under_way;
  const std::size_t count = plan_.buckets().size();
  for (std::size_t i = 0; i < count + kWindows; ++i) {
    const std::size_t window = i % kWindows;
    if (i >= kWindows && i - kWindows < count) {
      under_way[window].work.wait();
      ops_.end_traffic();
      offloaded_->put_bucket(under_way[window].bucket, window);
    }
    if (i >= count) continue;
    const comm::Tensor whole = offloaded_->bring_bucket(i, window);
    under_way[window] = {i, start_gather(i, offloaded_->own_in_window(i, window), whole)};
  }
}

void ParameterTraffic::gather_values() {
  if (plan_.options().shards_values()) {
    for (std::size_t unit = 0; unit < table_.units.size(); ++unit) {
      start_values(unit);
      finish_values(unit);
      release_values(unit);
    }
    return;
  }
  if (brings_values()) return gather_offloaded_values();
  std::vector<comm::Work> works;
  for (std::size_t i = 0; i < plan_.buckets().size(); ++i) works.push_back(start_gather(i));
  for (comm::Work& work : works) work.wait();
  ops_.end_traffic();
  if (!rounded_.is_empty()) ops_.convert(values_.all(), rounded_.all());
}

void ParameterTraffic::start_values(std::size_t unit) {
  if (units_[unit] != State::kAbsent) return;
  units_[unit] = State::kStarted;
  if (brings_values()) offloaded_->bring_own(unit);
  for (std::size_t i = 0; i < plan_.buckets().size(); ++i) {
    if (plan_.buckets()[i].last_unit == unit) gathers_[unit].push_back(start_gather(i));
  }
}

void ParameterTraffic::finish_values(std::size_t unit) {
  start_values(unit);
  if (units_[unit] == State::kPresent) return;
  for (comm::Work& work : gathers_[unit]) work.wait();
  gathers_[unit].clear();
  ops_.end_traffic();
  units_[unit] = State::kPresent;
  const ParameterUnit& of = table_.units[unit];
  if (!rounded_.is_empty()) ops_.convert(values_.part(of.offset, of.count), rounded_.part(of.offset, of.count));
}

void ParameterTraffic::release_values(std::size_t unit) { units_[unit] = State::kAbsent; }

void ParameterTraffic::gather_values_exactly(std::size_t unit) {
  DROPTEST_CHECK(units_[unit] == State::kAbsent, "values of a unit that a pass has in use");
  if (brings_values()) offloaded_->bring_own(unit);
  for (std::size_t i = 0; i < plan_.buckets().size(); ++i) {
    const Bucket& bucket = plan_.buckets()[i];
    if (bucket.last_unit != unit) continue;
    traffic_ = ops_.begin_traffic();
    group_.all_gather(as_sent(own_values(i)), as_sent(values_.part(bucket.offset, bucket.count)), bucket.counts,
                      {sim::TrafficClass::kControl, bucket.parameters, bucket.layer});
  }
  ops_.end_traffic();
}

}  // namespace droptest::models
