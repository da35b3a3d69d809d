// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/gpt2.h"

#include <algorithm>
#include <utility>

#include "models/gpt2/batch_check.h"
#include "models/gpt2/gpt2_messages.h"
#include "models/gpt2/gpt2_tensors.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

// Micro-batches between their two passes.
constexpr std::uint64_t kSlots = 1;

const Gpt2Config& validated(const Gpt2Config& config, const Ops& ops) {
  validate(config, ops.world_size());
  return config;
}

}  // namespace

Gpt2::Gpt2(const Gpt2Config& config, std::unique_ptr<Ops> ops, const AdamWConfig& adamw)
    : config_(validated(config, *ops)),
      ops_(std::move(ops)),
      store_(gpt2_tensors(config, ops_->world_size(), ops_->rank()), *ops_),
      optimizer_(store_, adamw, *ops_),
      stage_(config, store_, *ops_) {}

Gpt2::~Gpt2() {
  try {
    ops_->join();
    ops_->synchronize();
  } catch (const DeviceError&) {
    // A device that is broken works on nothing.
  }
}

StageBuffers& Gpt2::prepared(const BatchShape& shape, Keep keep) {
  std::optional<Prepared>& cached = keep == Keep::kForBackward ? training_ : evaluation_;
  if (cached && cached->plan.batch() == shape) return cached->buffers;
  cached.reset();
  StagePlan plan(config_, ops_->world_size(), ops_->rank(), ops_->form(), shape, keep);
  const std::uint64_t bytes = plan.bytes(kSlots);
  if (bytes > memory_bytes_) {
    // Nothing may be at work in the old memory when it goes, and both are not there at once.
    ops_->join();
    ops_->synchronize();
    training_.reset();
    evaluation_.reset();
    memory_.reset();
    memory_bytes_ = 0;
    memory_ = ops_->allocate(bytes, plan.purpose(), Ops::Content::kUnspecified);
    memory_bytes_ = bytes;
  }
  StageBuffers buffers = plan.placed(memory_->data(), 0, kSlots, ops_->form(), ops_->stream());
  return cached.emplace(Prepared{std::move(plan), std::move(buffers)}).buffers;
}

std::uint64_t Gpt2::memory_bytes() const {
  return ParameterStore::device_bytes(store_.tensors(), ops_->form()) + memory_bytes_;
}

std::uint64_t Gpt2::planned_bytes(const Gpt2Config& config, int world_size, int rank, const OpsForm& form,
                                  const BatchShape& shape) {
  return ParameterStore::device_bytes(gpt2_tensors(config, world_size, rank), form) +
         activation_bytes(config, world_size, rank, form, shape);
}

std::uint64_t Gpt2::activation_bytes(const Gpt2Config& config, int world_size, int rank, const OpsForm& form,
                                     const BatchShape& shape) {
  validate(config, world_size);
  // More than what any type needs. A wrong spec may ask for more than 64 bits can count.
  const double most = 8.0 * static_cast<double>(shape.batch) * static_cast<double>(shape.length) *
                      (32.0 * config.layers * config.width + 32.0 * config.width + config.vocabulary);
  if (most > 0x1p62) return std::uint64_t{1} << 63U;
  // Blocks are alike: from the third on, each adds as much as the one before it.
  constexpr int kDifferent = 3;
  const auto planned = [&](int layers) {
    Gpt2Config few = config;
    few.layers = layers;
    return std::max(StagePlan(few, world_size, rank, form, shape, Keep::kForBackward).bytes(kSlots),
                    StagePlan(few, world_size, rank, form, shape, Keep::kNothing).bytes(kSlots));
  };
  if (config.layers <= kDifferent) return planned(config.layers);
  const auto more = static_cast<std::uint64_t>(config.layers - kDifferent);
  return planned(kDifferent) + more * (planned(kDifferent) - planned(kDifferent - 1));
}

double Gpt2::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                      const BatchShape& shape) {
  check_batch(tokens, targets, shape, config_);
  StageBuffers& buffers = prepared(shape, Keep::kNothing);
  stage_.forward(buffers, Keep::kNothing, tokens, targets);
  stage_.evaluate_head(buffers);
  return ops_->numbers()[Number::kEvaluation];
}

void Gpt2::forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                            const BatchShape& shape, double scale) {
  check_batch(tokens, targets, shape, config_);
  StageBuffers& buffers = prepared(shape, Keep::kForBackward);
  const GradientMode mode = zeros_pending_ ? GradientMode::kSet : GradientMode::kAdd;
  zeros_pending_ = false;
  stage_.forward(buffers, Keep::kForBackward, tokens, targets);
  stage_.backward(buffers, scale, mode);
}

Gpt2::StepSums Gpt2::step_sums() {
  DROPTEST_CHECK(!zeros_pending_, "sums of a step without a pass");
  optimizer_.sum_gradient_squares();
  const Ops::Numbers numbers = ops_->numbers();
  return {numbers[Number::kLosses], numbers[Number::kGradientSquares]};
}

UpdateDecision Gpt2::update(double learning_rate, const UpdateRule& rule) {
  DROPTEST_CHECK(!zeros_pending_, "an update of a step without a pass");
  optimizer_.sum_gradient_squares();
  ops_->decide_update(rule, Gpt2Messages::losses(), Gpt2Messages::gradient_squares());
  optimizer_.step_as_decided(learning_rate);
  const Ops::Numbers numbers = ops_->numbers();
  const UpdateDecision decision{numbers[Number::kLoss], numbers[Number::kGradientNorm],
                                numbers[Number::kGradientFactor]};
  if (decision.skips()) optimizer_.take_back_step();
  return decision;
}

void Gpt2::download(Fields fields) {
  if (fields == Fields::kValuesAndGradients && zeros_pending_) {
    ops_->zero(store_.gradients());
    zeros_pending_ = false;
  }
  store_.download(fields);
}

}  // namespace droptest::models
