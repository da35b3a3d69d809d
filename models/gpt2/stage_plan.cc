// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/stage_plan.h"

#include <memory>
#include <utility>
#include <vector>

#include "models/gpt2/stage.h"
#include "models/ops/planner_ops.h"

namespace droptest::models {
namespace {

/// Gives each buffer an address of the dry run, and records which buffers are saved.
class Declaration final : public BufferVisitor {
 public:
  explicit Declaration(PlannerOps& ops) : ops_(ops) {}
  void tensor(comm::Tensor& tensor, const char* name, comm::ElementType type, std::uint64_t elems,
              Lifetime lifetime) override {
    tensor = ops_.buffer(name, type, elems);
    lifetimes.push_back(lifetime);
  }
  void tokens(TokenIds& tokens, const char* name, std::uint64_t count, Lifetime lifetime) override {
    tokens = ops_.token_buffer(name, count);
    lifetimes.push_back(lifetime);
  }

  std::vector<Lifetime> lifetimes;

 private:
  PlannerOps& ops_;
};

/// Uses the buffers that a StatefulAttention uses.
class PlannedAttention final : public StatefulAttention {
 public:
  explicit PlannedAttention(PlannerOps& ops) : ops_(ops) {}
  void forward(const AttentionPlace& /*at*/, const Sequences& /*sequences*/, const AttentionShape& /*shape*/,
               comm::ConstTensor qkv, comm::Tensor output) override {
    ops_.convert(elements(qkv, 0, static_cast<std::int64_t>(output.count_elems())), output);
  }
  void backward(const AttentionPlace& /*at*/, const Sequences& /*sequences*/, const AttentionShape& /*shape*/,
                comm::ConstTensor output, comm::ConstTensor grad_output, comm::Tensor grad_qkv) override {
    ops_.convert(output, grad_qkv);
    ops_.convert(grad_output, grad_qkv);
  }
  std::uint64_t bytes() const override { return 0; }

 private:
  PlannerOps& ops_;
};

/// Gives each buffer its place; one that no operation uses stays empty.
class Placing final : public BufferVisitor {
 public:
  Placing(const MemoryPlan& saved, std::byte* saved_at, const MemoryPlan& working, std::byte* working_at,
          comm::Stream* stream)
      : plans_{{&saved, saved_at, 0}, {&working, working_at, 0}}, stream_(stream) {}
  void tensor(comm::Tensor& tensor, const char* /*name*/, comm::ElementType type, std::uint64_t /*elems*/,
              Lifetime lifetime) override {
    const auto [at, bytes] = next(lifetime);
    tensor = {type, {at, static_cast<std::size_t>(bytes)}, stream_};
  }
  void tokens(TokenIds& tokens, const char* /*name*/, std::uint64_t /*count*/, Lifetime lifetime) override {
    const auto [at, bytes] = next(lifetime);
    tokens = {reinterpret_cast<std::int32_t*>(at), static_cast<std::size_t>(bytes / sizeof(std::int32_t))};
  }

 private:
  struct Plan {
    const MemoryPlan* plan;
    std::byte* at;
    std::size_t next;
  };
  std::pair<std::byte*, std::uint64_t> next(Lifetime lifetime) {
    Plan& plan = plans_[lifetime == Lifetime::kSaved ? 0 : 1];
    const std::size_t i = plan.next++;
    return {plan.at + plan.plan->offset(i), plan.plan->buffers()[i].bytes};
  }

  Plan plans_[2];
  comm::Stream* stream_;
};

}  // namespace

StagePlan::StagePlan(const Gpt2Config& config, const StageRange& range, int world_size, int rank, const OpsForm& form,
                     const BatchShape& batch, Keep keep, const SentPast& sent_past, const SlotOptions& options)
    : extents_(stage_extents(config, range, world_size, rank, batch, options)),
      batch_(batch),
      keep_(keep),
      sent_past_(sent_past),
      options_(options) {
  comm::DryCommunicator group(world_size, rank, forward_calls_);
  const std::unique_ptr<PlannerOps> ops = make_planner_ops(form, group);
  ParameterStore store(stage_tensors(config, range, world_size, rank), *ops);
  for (std::size_t i = 0; i < store.tensors().size(); ++i) {
    const Weight weight = store.weight(i);
    ops->name_tensor(weight.value, store.tensors()[i].name);
    ops->name_tensor(weight.operand, store.tensors()[i].name);
    ops->name_tensor(weight.gradient, store.tensors()[i].name);
  }
  PlannedAttention attention(*ops);
  Stage stage(config, range, store, *ops, options, config.attention.is_stateful() ? &attention : nullptr);
  StageBuffers buffers;
  buffers.sequences.positions = {{batch.first_position, batch.length}};
  Declaration declaration(*ops);
  visit_buffers(buffers, extents_, form, keep, sent_past, options, declaration);
  if (!buffers.passed_input.bytes.empty()) ops->convert(buffers.passed_input, Stage::input(buffers));
  stage.forward(buffers, keep, {}, {});
  if (range.has_embedding() && sent_past.activations) ops->convert(Stage::input(buffers), Stage::output(buffers));
  const auto of_forward = static_cast<std::ptrdiff_t>(forward_calls_.size());
  if (keep != Keep::kNothing) ops->begin_pass();  // other slots may use the working memory between the two
  const bool takes_gradient = !range.has_head() && !buffers.passed_gradient.bytes.empty();
  if (takes_gradient) ops->convert(buffers.passed_gradient, Stage::grad_output(buffers));
  if (keep == Keep::kForBackward) {
    stage.backward(buffers, 1, static_cast<double>(batch.rows()), GradientMode::kSet);
  } else if (keep == Keep::kForSplitBackward) {
    stage.backward_inputs(buffers, 1, static_cast<double>(batch.rows()), GradientMode::kSet);
    ops->begin_pass();
    stage.backward_weights(buffers, GradientMode::kSet, Stage::Reports::kNothing);
  } else if (range.has_head()) {
    stage.evaluate_head(buffers, static_cast<double>(batch.rows()), {}, [](auto, auto) {});
  }
  later_calls_.assign(forward_calls_.begin() + of_forward, forward_calls_.end());
  forward_calls_.resize(static_cast<std::size_t>(of_forward));

  std::vector<PlannedBuffer> saved;
  std::vector<PlannedBuffer> working;
  for (std::size_t i = 0; i < ops->buffers().size(); ++i) {
    PlannedBuffer buffer = ops->buffers()[i];
    if (buffer.first_time < 0 && buffer.earlier.empty()) {
      buffer.bytes = 0;
    } else if (buffer.first_time < 0) {
      buffer.first_time = buffer.earlier.back().first;
      buffer.last_time = buffer.earlier.back().second;
      buffer.earlier.pop_back();
    }
    if (declaration.lifetimes[i] == Lifetime::kWorking) {
      working.push_back(std::move(buffer));
      continue;
    }
    // All of a slot is in use at once, at the end of the forward pass.
    buffer.first_time = 0;
    buffer.last_time = 0;
    buffer.earlier.clear();
    saved.push_back(std::move(buffer));
  }
  saved_ = MemoryPlan(std::move(saved));
  working_ = MemoryPlan(std::move(working));
  stored_bytes_ = ops->stored_bytes();
  passing_bytes_ = ops->offload_bytes();
}

std::string StagePlan::purpose() const {
  std::vector<PlannedBuffer> all = saved_.buffers();
  all.insert(all.end(), working_.buffers().begin(), working_.buffers().end());
  return "activations of a batch of " + std::to_string(batch_.batch) + " x " + std::to_string(batch_.length) +
         " tokens (" + largest_text(all, 3) + ")";
}

StageBuffers StagePlan::placed_at(std::byte* saved, std::byte* working, std::uint64_t slot, const OpsForm& form,
                                  comm::Stream* stream) const {
  StageBuffers buffers;
  Placing placing(saved_, saved, working_, working, stream);
  visit_buffers(buffers, extents_, form, keep_, sent_past_, options_, placing);
  buffers.slot = static_cast<int>(slot);
  buffers.sequences.positions = {{batch_.first_position, batch_.length}};
  return buffers;
}

}  // namespace droptest::models
