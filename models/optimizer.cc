// SPDX-License-Identifier: Apache-2.0
#include "models/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "models/gpt2/gpt2_messages.h"

namespace droptest::models {

namespace {

std::int64_t chunks_of(const ParameterRange& range) {
  return static_cast<std::int64_t>((range.count + kNormChunkElems - 1) / kNormChunkElems);
}

ParameterArena moments(const ParameterStore& store, const char* purpose, Ops& ops) {
  const ParameterArena::Holds holds =
      store.plan().options().shards_state() ? ParameterArena::Holds::kOwn : ParameterArena::Holds::kTrained;
  return {store.table(), store.plan(), holds, store.type(), purpose, Ops::Content::kZeros, ops};
}

}  // namespace

std::vector<ParameterRange> ranges_within(const ParameterTable& table, const OwnPart& part, Counted counted) {
  std::vector<ParameterRange> ranges;
  for (const std::size_t i : table.in_order()) {
    if (counted == Counted::kSharded && table.tensors[i].placement == Placement::kReplicated) continue;
    const std::uint64_t begin = std::max(part.offset, table.ranges[i].offset);
    const std::uint64_t end = std::min(part.offset + part.count, table.ranges[i].offset + table.trained[i]);
    if (begin < end)
      ranges.push_back({begin - part.offset, end - begin, table.ranges[i].decay, table.ranges[i].learning_rate_factor});
  }
  return ranges;
}

Optimizer::Optimizer(ParameterStore& store, const OptimizerConfig& config, Ops& ops)
    : store_(store), config_(config), ops_(ops) {
  if (!has_offloaded_moments()) {
    first_moments_ = moments(store, "first moments of the optimizer", ops);
    if (config.moments() > 1) second_moments_ = moments(store, "second moments of the optimizer", ops);
  }
  for (const OwnPart& part : store.offloaded() == nullptr ? store.plan().own() : store.offloaded()->pieces()) {
    ranges_.push_back(ops.make_ranges(ranges_within(store.table(), part, Counted::kAll)));
  }
}

AdamWStep adamw_step(const OptimizerConfig& config, std::uint64_t step, double learning_rate, double gradient_scale) {
  AdamWStep update;
  update.learning_rate = learning_rate;
  update.gradient_scale = gradient_scale;
  update.beta1 = config.beta1;
  update.beta2 = config.beta2;
  update.epsilon = config.epsilon;
  update.weight_decay = config.weight_decay;
  update.bias_correction1 = 1.0 - std::pow(config.beta1, static_cast<double>(step));
  update.bias_correction2 = 1.0 - std::pow(config.beta2, static_cast<double>(step));
  return update;
}

void Optimizer::step(double learning_rate, double gradient_scale) {
  update(learning_rate, gradient_scale, Ops::GradientFactor::kOfStep);
}

void Optimizer::step_as_decided(double learning_rate) { update(learning_rate, 1, Ops::GradientFactor::kDecided); }

void Optimizer::update(double learning_rate, double gradient_scale, Ops::GradientFactor factor) {
  ++step_;
  const bool is_sgd = config_.rule == OptimizerConfig::Rule::kSgd;
  const auto update_part = [&](std::size_t i, const UpdateArenas& arenas) {
    if (is_sgd) {
      ops_.sgd(*ranges_[i], arenas, {learning_rate, gradient_scale, config_.momentum, config_.weight_decay}, factor);
    } else {
      ops_.adamw(*ranges_[i], arenas, adamw_step(config_, step_, learning_rate, gradient_scale), factor);
    }
  };
  if (OffloadedState* const outside = store_.offloaded()) {
    outside->update([&](const OffloadedState::Piece& piece) {
      const bool has_moments = outside->has_moments();
      UpdateArenas arenas{outside->has_values() ? piece.values : store_.own_values(piece.part),
                          store_.own_gradients(piece.part),
                          has_moments ? piece.moments[0] : first_moments_.own(piece.part),
                          {},
                          store_.own_rounded(piece.part)};
      if (!is_sgd) arenas.second_moments = has_moments ? piece.moments[1] : second_moments_.own(piece.part);
      update_part(piece.number, arenas);
    });
    return;
  }
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const OwnPart& part = store_.plan().own()[i];
    UpdateArenas arenas{
        store_.own_values(part), store_.own_gradients(part), first_moments_.own(part), {}, store_.own_rounded(part)};
    if (!is_sgd) arenas.second_moments = second_moments_.own(part);
    update_part(i, arenas);
  }
}

void Optimizer::reset() {
  step_ = 0;
  if (has_offloaded_moments()) return store_.offloaded()->zero_moments();
  ops_.zero(first_moments_.all());
  if (!second_moments_.is_empty()) ops_.zero(second_moments_.all());
}

void Optimizer::release() {
  ops_.synchronize();
  first_moments_ = {};
  second_moments_ = {};
}

void Optimizer::visit_state(StateVisitor& visitor) {
  visitor.number("steps", step_);
  if (has_offloaded_moments()) {
    store_.offloaded()->visit_moments(visitor, 0, "first moments");
    if (config_.moments() > 1) store_.offloaded()->visit_moments(visitor, 1, "second moments");
    return;
  }
  first_moments_.visit_state(visitor, "first moments");
  if (second_moments_.is_empty()) return;
  second_moments_.visit_state(visitor, "second moments");
}

GradientSquares::GradientSquares(ParameterStore& store, Ops& ops, comm::Communicator* data)
    : store_(store), ops_(ops), data_(store.plan().options().shards_state() ? data : nullptr) {
  const Counted counted = ops.rank() == 0 ? Counted::kAll : Counted::kSharded;
  const auto count_chunks = [&](const OwnPart& part) {
    std::int64_t chunks = 0;
    for (const ParameterRange& range : ranges_within(store.table(), part, counted)) chunks += chunks_of(range);
    return chunks;
  };
  for (const OwnPart& part : store.plan().own()) {
    parts_.push_back({ops.make_ranges(ranges_within(store.table(), part, counted)), count_chunks({0, part.offset, 0}),
                      count_chunks(part)});
  }
  const std::int64_t chunks = count_chunks({0, store.table().trained_elems, 0});
  const auto bytes = static_cast<std::size_t>(chunks) * sizeof(double);
  memory_ = ops.allocate(std::max(bytes, sizeof(double)), "sums of squares of the gradients", Ops::Content::kZeros);
  sums_ = {comm::ElementType::kFloat64, {memory_->data(), bytes}, ops.stream()};
}

void GradientSquares::sum() {
  // Chunks of other ranks are zeros here, so the sum over ranks is the sum of each chunk by its owner.
  if (data_ != nullptr) ops_.zero(sums_);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    ops_.sum_squares(*parts_[i].ranges, store_.own_gradients(store_.plan().own()[i]),
                     elements(sums_, parts_[i].first_chunk, parts_[i].chunks));
  }
  if (data_ != nullptr) {
    comm::Stream* const traffic = ops_.begin_traffic();
    data_->all_reduce({sums_.type, sums_.bytes, traffic}, comm::ReduceOp::kSum, Gpt2Messages::gradient_squares());
    ops_.end_traffic();
  }
  ops_.add_sums(sums_, Number::kGradientSquares);
}

double LearningRateSchedule::at(std::uint64_t step) const {
  if (shape == Shape::kTable) return peak * factor_at(step);
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (shape == Shape::kConstant) return peak;
  if (step >= total_steps) return floor;
  const std::uint64_t begin = shape == Shape::kWarmupStableDecay
                                  ? total_steps - std::min(decay_steps, total_steps - warmup_steps)
                                  : warmup_steps;
  if (step < begin) return peak;
  const double progress = static_cast<double>(step - begin) / static_cast<double>(total_steps - begin);
  if (shape != Shape::kCosine) return std::lerp(peak, floor, progress);
  return floor + (peak - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

double LearningRateSchedule::factor_at(std::uint64_t step) const {
  const auto after =
      std::find_if(points.begin(), points.end(), [step](const Point& point) { return point.step > step; });
  if (after == points.begin()) return points.front().factor;
  if (after == points.end()) return points.back().factor;
  const Point& before = *(after - 1);
  const double progress = static_cast<double>(step - before.step) / static_cast<double>(after->step - before.step);
  return std::lerp(before.factor, after->factor, progress);
}

}  // namespace droptest::models
