// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/gpt2.h"

#include <algorithm>
#include <string>
#include <utility>

#include "models/gpt2/gpt2_messages.h"
#include "models/gpt2/gpt2_tensors.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

const Gpt2Config& validated(const Gpt2Config& config, const SlotOptions& options, int world_size) {
  validate(config, world_size);
  validate(StageRange::whole(config), options, config);
  return config;
}

}  // namespace

Gpt2::Gpt2(const Gpt2Config& config, std::unique_ptr<Ops> ops, const OptimizerConfig& optimizer,
           const SlotOptions& options, const ModelRanks& ranks)
    : config_(validated(config, options, ops->world_size())),
      options_(options),
      ranks_(ranks),
      ops_(std::move(ops)),
      store_(gpt2_tensors(config, ops_->world_size(), ops_->rank()), *ops_, ranks.data),
      optimizer_(store_, optimizer, *ops_),
      squares_(store_, *ops_, ranks.data.group),
      stage_(config, StageRange::whole(config), store_, *ops_),
      in_use_(static_cast<std::size_t>(options.slots)),
      targets_(in_use_.size()) {}

Gpt2::~Gpt2() {
  try {
    ops_->join();
    ops_->synchronize();
  } catch (const DeviceError&) {
    // A device that is broken works on nothing.
  }
}

StageBuffers& Gpt2::prepared(const BatchShape& shape, Keep keep, std::size_t slot) {
  std::optional<Prepared>& cached = keep == Keep::kForBackward ? training_ : evaluation_;
  const bool between_passes = std::find(in_use_.begin(), in_use_.end(), true) != in_use_.end();
  if (keep == Keep::kNothing) DROPTEST_CHECK(!between_passes, "an evaluation between the passes of a micro-batch");
  if (cached && cached->plan.batch().batch == shape.batch && cached->plan.batch().length == shape.length) {
    StageBuffers& buffers = cached->slots[slot];
    buffers.extents.batch = shape;  // its positions may begin elsewhere
    return buffers;
  }
  DROPTEST_CHECK(!between_passes, "micro-batches of two shapes between their passes");
  cached.reset();
  StagePlan plan(config_, StageRange::whole(config_), ops_->world_size(), ops_->rank(), ops_->form(), shape, keep);
  const std::uint64_t slots = keep == Keep::kForBackward ? in_use_.size() : 1;
  const std::uint64_t bytes = plan.bytes(slots);
  if (bytes > memory_bytes_) {
    // No work may use the old memory when it is freed. The old and the new memory never exist at once.
    ops_->join();
    ops_->synchronize();
    training_.reset();
    evaluation_.reset();
    memory_.reset();
    memory_bytes_ = 0;
    memory_ = ops_->allocate(bytes, plan.purpose(), Ops::Content::kUnspecified);
    memory_bytes_ = bytes;
  }
  std::vector<StageBuffers> placed;
  for (std::uint64_t i = 0; i < slots; ++i) {
    placed.push_back(plan.placed(memory_->data(), i, slots, ops_->form(), ops_->stream()));
  }
  return cached.emplace(Prepared{std::move(plan), std::move(placed)}).slots[slot];
}

std::uint64_t Gpt2::memory_bytes() const {
  return ParameterStore::device_bytes(store_.tensors(), ops_->form(), ranks_.data.sharding, ranks_.data.ranks(),
                                      ranks_.data.rank(), optimizer_.config().moments()) +
         memory_bytes_;
}

std::uint64_t Gpt2::planned_bytes(const Gpt2Config& config, int world_size, int rank, const OpsForm& form,
                                  const BatchShape& shape, const SlotOptions& options, const ShardOptions& sharding,
                                  int data_ranks, int data_rank, int moments) {
  return ParameterStore::device_bytes(gpt2_tensors(config, world_size, rank), form, sharding, data_ranks, data_rank,
                                      moments) +
         activation_bytes(config, world_size, rank, form, shape, options);
}

std::uint64_t Gpt2::activation_bytes(const Gpt2Config& config, int world_size, int rank, const OpsForm& form,
                                     const BatchShape& shape, const SlotOptions& options) {
  validated(config, options, world_size);
  // An upper bound for all element types, in double: the sizes of a wrong spec may not fit into 64 bits.
  const double most = 8.0 * options.slots * static_cast<double>(shape.batch) * static_cast<double>(shape.length) *
                      (32.0 * config.layers * config.width + 32.0 * config.width + config.vocabulary);
  if (most > 0x1p62) return std::uint64_t{1} << 63U;
  // Blocks are alike: from the third on, each adds as much as the one before it.
  constexpr int kDifferent = 3;
  const auto planned = [&](int layers) {
    Gpt2Config few = config;
    few.layers = layers;
    const auto bytes = [&](Keep keep, int slots) {
      return StagePlan(few, StageRange::whole(few), world_size, rank, form, shape, keep)
          .bytes(static_cast<std::uint64_t>(slots));
    };
    return std::max(bytes(Keep::kForBackward, options.slots), bytes(Keep::kNothing, 1));
  };
  if (config.layers <= kDifferent) return planned(config.layers);
  const auto more = static_cast<std::uint64_t>(config.layers - kDifferent);
  return planned(kDifferent) + more * (planned(kDifferent) - planned(kDifferent - 1));
}

double Gpt2::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                      const BatchShape& shape) {
  check_batch(tokens, targets, shape, config_);
  StageBuffers& buffers = prepared(shape, Keep::kNothing, 0);
  stage_.forward(buffers, Keep::kNothing, tokens, targets);
  stage_.evaluate_head(buffers, std::max<std::int64_t>(1, count_targets(targets)));
  return ops_->numbers()[Number::kEvaluation];
}

void Gpt2::forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                            const BatchShape& shape, double scale, std::int64_t mean_over, Follows follows) {
  forward(0, tokens, targets, shape);
  backward(0, scale, mean_over, follows);
}

std::size_t Gpt2::slot_index(int slot) const {
  DROPTEST_CHECK(slot >= 0 && slot < options_.slots,
                 "slot " + std::to_string(slot) + " of a model with " + std::to_string(options_.slots));
  return static_cast<std::size_t>(slot);
}

void Gpt2::forward(int slot, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                   const BatchShape& shape) {
  check_batch(tokens, targets, shape, config_);
  const std::size_t i = slot_index(slot);
  DROPTEST_CHECK(!in_use_[i], "slot " + std::to_string(slot) + " waits for its backward pass");
  StageBuffers& buffers = prepared(shape, Keep::kForBackward, i);
  in_use_[i] = true;
  targets_[i] = count_targets(targets);
  stage_.forward(buffers, Keep::kForBackward, tokens, targets);
}

void Gpt2::backward(int slot, double scale, std::int64_t mean_over, Follows follows) {
  const std::size_t i = slot_index(slot);
  DROPTEST_CHECK(in_use_[i], "slot " + std::to_string(slot) + " has had no forward pass");
  store_.expect_gradients(passes_, follows == Follows::kUpdate);
  const GradientMode mode = passes_ == 0 ? GradientMode::kSet : GradientMode::kAdd;
  ++passes_;
  // Where all targets are ignored, the losses are zeros.
  const std::int64_t targets = mean_over == kOwnTargets ? std::max<std::int64_t>(1, targets_[i]) : mean_over;
  stage_.backward(training_->slots[i], scale, targets, mode);
  in_use_[i] = false;
}

Gpt2::StepSums Gpt2::step_sums() {
  DROPTEST_CHECK(passes_ > 0, "sums of a step without a pass");
  store_.finish_gradients();
  squares_.sum();
  const Ops::Numbers numbers = ops_->numbers();
  return {numbers[Number::kLosses], numbers[Number::kGradientSquares]};
}

UpdateDecision Gpt2::update(double learning_rate, UpdateRule rule) {
  DROPTEST_CHECK(passes_ > 0, "an update of a step without a pass");
  rule.data_ranks = ranks_.data.ranks();
  rule.data_stride = ranks_.data_stride;
  store_.finish_gradients();
  squares_.sum();
  ops_->decide_update(rule, ranks_.all, Gpt2Messages::losses_and_norms());
  optimizer_.step_as_decided(learning_rate);
  const Ops::Numbers numbers = ops_->numbers();
  const UpdateDecision decision{numbers[Number::kLoss], numbers[Number::kGradientNorm],
                                numbers[Number::kGradientFactor]};
  if (decision.skips()) {
    optimizer_.take_back_step();
  } else {
    store_.spread_values();
  }
  return decision;
}

void Gpt2::step(double learning_rate, double gradient_scale) {
  store_.finish_gradients();
  optimizer_.step(learning_rate, gradient_scale);
  store_.spread_values();
}

void Gpt2::visit_state(StateVisitor& visitor) {
  store_.visit_state(visitor);
  optimizer_.visit_state(visitor);
}

void Gpt2::download(Fields fields) {
  if (fields == Fields::kValuesAndGradients && passes_ == 0) {
    ops_->zero(store_.gradients());
    // The sum of no losses is 0.
    ops_->sum_losses({ops_->form().types().losses, {}, ops_->stream()}, 1, 1, GradientMode::kSet, Number::kLosses);
    passes_ = 1;
  }
  store_.download(fields);
}

}  // namespace droptest::models
