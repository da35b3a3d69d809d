// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/gpt2.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "models/gpt2/gpt2_messages.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/pass_memory.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

std::vector<StageRange> own_ranges(const Gpt2Config& config, const PipelineParallel& pipeline) {
  if (pipeline.plan == nullptr) return {StageRange::whole(config)};
  std::vector<StageRange> ranges;
  for (const int stage : pipeline.plan->stages_of(pipeline.rank())) {
    ranges.push_back(pipeline.plan->stages[static_cast<std::size_t>(stage)]);
  }
  return ranges;
}

void check_dropout(const Gpt2Config& config, const OpsForm& form) {
  if (config.dropout.attention == 0 || config.attention.is_stateful() || form.drops_probabilities()) return;
  throw ConfigError("GPT-2: dropout of attention: got " + std::to_string(config.dropout.attention) +
                    " with an attention kernel that has none, want 0, or a kernel of droptest");
}

void check_frozen(const Gpt2Config& config, const ShardOptions& sharding) {
  if ((sharding.zero < 2 && !sharding.offloads_values) || !freezes_any(config)) return;
  throw ConfigError("GPT-2: frozen tensors: got some with " +
                    (sharding.zero < 2 ? std::string("offloaded values") : "zero " + std::to_string(sharding.zero)) +
                    ", want values in memory and zero 0 or 1");
}

const Gpt2Config& validated(const Gpt2Config& config, const SlotOptions& options, int world_size) {
  validate(config, options, world_size);
  return config;
}

std::unique_ptr<StatefulAttention> make_attention_of(const Gpt2Config& config, const SequenceParallel& ranks,
                                                     Ops& ops) {
  const IndexRange heads = gpt2_part(config, ops.world_size(), ops.rank()).heads;
  return make_stateful_attention(config.attention, ranks, static_cast<std::int64_t>(heads.first),
                                 static_cast<std::int64_t>(heads.count), ops);
}

}  // namespace

Gpt2::Gpt2(const Gpt2Config& config, std::unique_ptr<Ops> ops, const OptimizerConfig& optimizer,
           const SlotOptions& options, const ModelRanks& ranks)
    : config_(validated(config, options, ops->world_size())),
      options_(options),
      ranks_(ranks),
      ops_(std::move(ops)),
      cut_(config.attention.sequence, ranks.sequence),
      attention_(make_attention_of(config, ranks.sequence, *ops_)),
      store_(stage_tensors(config, own_ranges(config, ranks.pipeline), ops_->world_size(), ops_->rank()), *ops_,
             ranks.data, optimizer.moments(),
             options.tensor_sequence ? ParameterStore::ReplicatedGradients::kOfOwnTokens
                                     : ParameterStore::ReplicatedGradients::kWhole),
      optimizer_(store_, optimizer, *ops_),
      squares_(store_, *ops_, ranks.data.group),
      stages_(make_stages(options)) {
  check_dropout(config, ops_->form());
  check_frozen(config, ranks.data.sharding);
  if (ranks.pipeline.plan == nullptr || ranks.pipeline.group == nullptr) return;
  const PipelinePlan& plan = *ranks.pipeline.plan;
  const int stages = static_cast<int>(plan.stages.size());
  traffic_.emplace(*ranks.pipeline.group, plan.program);
  const int first = plan.rank_of(0);
  const int last = plan.rank_of(stages - 1);
  if (first == last || config.classifies()) return;
  auto ends = ranks.pipeline.group->subgroup(std::array{std::min(first, last), std::max(first, last)});
  if (ends == nullptr || store_.tensors()[store_.table().number_of(kTiedTensor)].is_frozen()) return;
  ends_ = Ends{std::move(ends), first < last ? 1 : 0};
}

std::vector<std::unique_ptr<Gpt2::OwnStage>> Gpt2::make_stages(const SlotOptions& options) {
  std::vector<std::unique_ptr<OwnStage>> stages;
  const PipelinePlan* const plan = ranks_.pipeline.plan.get();
  if (plan == nullptr) {
    stages.push_back(std::make_unique<OwnStage>(0, StageRange::whole(config_), Keep::kForBackward, options.slots,
                                                config_, store_, *ops_, options, attention_.get()));
    return stages;
  }
  bool has_head = false;
  for (const int number : plan->stages_of(ranks_.pipeline.rank())) {
    const auto s = static_cast<std::size_t>(number);
    stages.push_back(std::make_unique<OwnStage>(number, plan->stages[s], plan->keep_of(number), plan->program.slots[s],
                                                config_, store_, *ops_, options, attention_.get()));
    stages.back()->sent_past = plan->sent_past_of(number);
    has_head = has_head || (plan->stages[s].has_head() && !config_.classifies());
  }
  for (const auto& own : stages) {
    if (own->range.has_embedding() && !own->range.has_head() && has_head) own->stage.share_tokens();
  }
  return stages;
}

Gpt2::~Gpt2() {
  store_.abandon_traffic();  // first, because a device may wait for the peers of these collectives
  try {
    ops_->end_traffic();
    ops_->join();
    ops_->synchronize();
  } catch (const DeviceError&) {
    // A broken device does not work on anything.
  }
}

bool Gpt2::is_between_passes() const { return in_flight_ > 0; }

Gpt2::Prepared& Gpt2::prepared(const BatchShape& shape, Keep keep) {
  const bool training = keep != Keep::kNothing;
  ++slots_taken_;
  std::optional<Prepared>& cached = training ? training_ : evaluation_;
  if (!training) DROPTEST_CHECK(!is_between_passes(), "an evaluation between the passes of a micro-batch");
  if (cached && cached->shape.batch == shape.batch && cached->shape.length == shape.length) return *cached;
  DROPTEST_CHECK(!is_between_passes(), "micro-batches of two shapes between their passes");
  cached.reset();
  std::vector<StagePlan> plans;
  std::vector<std::uint64_t> slots;
  for (const auto& own : stages_) {
    plans.emplace_back(config_, own->range, ops_->world_size(), ops_->rank(), ops_->form(), cut_.shape(shape),
                       training ? own->keep : Keep::kNothing, own->sent_past, options_);
    slots.push_back(training ? own->in_use.size() : 1);
  }
  const PassMemory needed(plans, slots, training);
  if (memory_ == nullptr || needed.bytes() > memory_bytes_) {
    // No work may use the old memory when it is freed. The old and the new memory never exist at once.
    ops_->join();
    ops_->synchronize();
    training_.reset();
    evaluation_.reset();
    memory_.reset();
    memory_bytes_ = 0;
    // A rank without tokens needs no memory, but an allocation.
    memory_ =
        ops_->allocate(std::max<std::uint64_t>(1, needed.bytes()), plans.front().purpose(), Ops::Content::kUnspecified);
    memory_bytes_ = needed.bytes();
    ++slots_allocated_;
  }
  Prepared placed{shape, {}};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    std::vector<StageBuffers>& of_stage = placed.slots.emplace_back();
    for (std::uint64_t slot = 0; slot < slots[i]; ++slot) {
      of_stage.push_back(plans[i].placed_at(memory_->data() + needed.saved(i, slot),
                                            memory_->data() + needed.working(i), slot, ops_->form(), ops_->stream()));
    }
  }
  return cached.emplace(std::move(placed));
}

MemoryUse Gpt2::memory_use() const {
  MemoryUse use = store_.memory_use();
  use.optimizer = optimizer_.memory_bytes();
  use.activations = memory_bytes_ + (attention_ == nullptr ? 0 : attention_->bytes());
  use.offload += ops_->offload_bytes();
  return use;
}

void Gpt2::forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                            const BatchShape& shape, double scale, double mean_over, Follows follows) {
  forward(0, tokens, targets, shape);
  backward(0, scale, mean_over, follows);
}

std::size_t Gpt2::stage_index(const StageSlot& at) const {
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    if (stages_[i]->number != at.stage) continue;
    DROPTEST_CHECK(at.slot >= 0 && at.slot < static_cast<int>(stages_[i]->in_use.size()),
                   "slot " + std::to_string(at.slot) + " of a stage with " + std::to_string(stages_[i]->in_use.size()));
    return i;
  }
  throw CheckError("stage " + std::to_string(at.stage) + " is on another rank");
}

StageBuffers& Gpt2::buffers(const StageSlot& at) {
  DROPTEST_CHECK(training_.has_value(), "a slot before the shape of its batches is known");
  return training_->slots[stage_index(at)][static_cast<std::size_t>(at.slot)];
}

void Gpt2::take_sequences(const MicroBatch& batch, StageBuffers& to) {
  to.extents.batch = cut_.shape(batch.shape);
  to.sequences = cut_.sequences(batch);
}

void Gpt2::forward(const StageSlot& at, const MicroBatch& batch) {
  check_batch(batch, config_);
  const std::size_t i = stage_index(at);
  const auto slot = static_cast<std::size_t>(at.slot);
  OwnStage& own = *stages_[i];
  DROPTEST_CHECK(!own.in_use[slot], "slot " + std::to_string(at.slot) + " waits for its backward pass");
  StageBuffers& b = prepared(batch.shape, Keep::kForBackward).slots[i][slot];
  take_sequences(batch, b);
  own.in_use[slot] = true;
  most_in_flight_ = std::max(most_in_flight_, ++in_flight_);
  const auto tokens = cut_.own(batch.tokens, batch.shape, own_tokens_);
  const auto targets = cut_.own(batch.targets, batch.shape, own_targets_);
  own.targets[slot] = weigh_targets(targets, config_.class_weights);
  own.stage.forward(b, own.keep, tokens, targets);
}

void Gpt2::backward(const StageSlot& at, Action::Kind kind, double scale, double mean_over, Follows follows) {
  const std::size_t i = stage_index(at);
  const auto slot = static_cast<std::size_t>(at.slot);
  OwnStage& own = *stages_[i];
  DROPTEST_CHECK(own.in_use[slot], "slot " + std::to_string(at.slot) + " has had no forward pass");
  StageBuffers& b = training_->slots[i][slot];
  if (is_whole()) {
    store_.expect_gradients(passes_, follows == Follows::kUpdate);
  } else if (passes_ == 0) {
    store_.expect_gradients(0, true);
  }
  ++passes_;
  // Gradients of stages are ready after their last pass only; the store counts the passes of a whole model.
  const auto reports = is_whole() || follows == Follows::kUpdate ? Stage::Reports::kReady : Stage::Reports::kNothing;
  const auto mode_of = [](int& passes) { return passes++ == 0 ? GradientMode::kSet : GradientMode::kAdd; };
  // If all targets are ignored, the losses are zeros, and any divisor will do.
  const double own_targets = own.targets[slot] == 0 ? 1 : own.targets[slot];
  const double targets = mean_over == kOwnTargets ? own_targets : mean_over;
  // Passes of a stage with split passes may be whole, too.
  if (kind == Action::Kind::kWeightGradient) {
    own.stage.backward_weights(b, mode_of(own.weight_passes), reports);
  } else if (own.keep == Keep::kForBackward) {
    own.stage.backward(b, scale, targets, mode_of(own.passes), reports);
  } else {
    own.stage.backward_inputs(b, scale, targets, mode_of(own.passes));
    if (kind == Action::Kind::kBackward) own.stage.backward_weights(b, mode_of(own.weight_passes), reports);
  }
  if (kind == Action::Kind::kInputGradient) return;
  own.in_use[slot] = false;
  --in_flight_;
}

void Gpt2::zero_gradients() {
  passes_ = 0;
  for (const auto& own : stages_) own->passes = own->weight_passes = 0;
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
  rule.sequence_ranks = ranks_.sequence.ranks();
  rule.sequence_stride = ranks_.sequence.stride;
  rule.data_ranks = ranks_.data.ranks() / rule.sequence_ranks;
  rule.data_stride = ranks_.data_stride;
  if (traffic_) {
    rule.pipeline_ranks = ranks_.pipeline.group->world_size();
    rule.pipeline_stride = ranks_.pipeline.stride;
    rule.head_rank = ranks_.pipeline.plan->rank_of(static_cast<int>(ranks_.pipeline.plan->stages.size()) - 1);
  }
  store_.finish_gradients();
  squares_.sum();
  ops_->decide_update(rule, ranks_.all, Gpt2Messages::losses_and_norms());
  optimizer_.step_as_decided(learning_rate);
  const Ops::Numbers numbers = ops_->numbers();
  const UpdateDecision decision{numbers[Number::kLoss], numbers[Number::kGradientNorm],
                                numbers[Number::kGradientFactor]};
  if (decision.skips()) optimizer_.take_back_step();
  embedding_is_spread_ = !ends_;
  // If ranks may disagree, those that skip take part in the collectives, too.
  if (!decision.skips() || rule.flags != UpdateRule::Flags::kReliable) store_.spread_values();
  return decision;
}

void Gpt2::set_replicas(const ModelRanks& ranks) {
  store_.set_group(ranks.data.group);
  ranks_.data.group = ranks.data.group;
  ranks_.data_stride = ranks.data_stride;
  ranks_.sequence.stride = ranks.sequence.stride;
  ranks_.pipeline.stride = ranks.pipeline.stride;
  ranks_.all = ranks.all;
}

void Gpt2::step(double learning_rate, double gradient_scale) {
  store_.finish_gradients();
  optimizer_.step(learning_rate, gradient_scale);
  embedding_is_spread_ = !ends_;
  store_.spread_values();
}

void Gpt2::visit_state(StateVisitor& visitor) {
  store_.visit_state(visitor);
  optimizer_.visit_state(visitor);
  if (traffic_) traffic_->visit_state(visitor);
}

void Gpt2::download(Fields fields) {
  if (fields == Fields::kValuesAndGradients && passes_ == 0) {
    ops_->zero(store_.gradients());
    // The sum of no losses is 0.
    ops_->sum_losses({ops_->form().types().losses, {}, ops_->stream()}, 1, 1, GradientMode::kSet, Number::kLosses);
    passes_ = 1;
    for (const auto& own : stages_) own->passes = own->weight_passes = 1;
  }
  store_.download(fields);
}

}  // namespace droptest::models
