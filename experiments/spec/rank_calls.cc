// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/rank_calls.h"

#include <cstdint>
#include <string>
#include <utility>

#include "experiments/spec/model_options.h"
#include "experiments/spec/rank_groups.h"
#include "models/gpt2/gpt2.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/ops/planner_ops.h"
#include "models/outer_step.h"
#include "models/training_step.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// The element types of a device and the sizes of the host, which any machine knows. Of calls, only the number of
/// control messages depends on sizes.
class FormOfTypes final : public models::OpsForm {
 public:
  FormOfTypes(std::unique_ptr<models::OpsForm> host, const models::OpsTypes& types)
      : host_(std::move(host)), types_(types) {}
  models::OpsTypes types() const override { return types_; }
  models::KernelDevice device() const override { return models::KernelDevice::kCuda; }
  std::uint64_t attention_statistics_elems(const models::AttentionShape& shape) const override {
    return host_->attention_statistics_elems(shape);
  }
  std::uint64_t attention_forward_scratch_elems(const models::AttentionShape& shape) const override {
    return host_->attention_forward_scratch_elems(shape);
  }
  std::uint64_t attention_backward_scratch_elems(const models::AttentionShape& shape) const override {
    return host_->attention_backward_scratch_elems(shape);
  }
  std::uint64_t norm_scratch_elems(std::int64_t rows, std::int64_t width) const override {
    return host_->norm_scratch_elems(rows, width);
  }
  bool gelu_needs_room() const override { return host_->gelu_needs_room(); }
  bool gelu_from_projection() const override { return false; }
  bool gelu_sums_bias() const override { return host_->gelu_sums_bias(); }
  models::LogitChunks logit_chunks(std::int64_t rows, std::int64_t columns, std::int64_t largest_part) const override {
    return host_->logit_chunks(rows, columns, largest_part);
  }
  bool fuses_cross_entropy() const override { return host_->fuses_cross_entropy(); }
  bool drops_probabilities() const override { return true; }

 private:
  std::unique_ptr<models::OpsForm> host_;
  models::OpsTypes types_;
};

std::unique_ptr<models::OpsForm> form_of_calls(const RunConfig& config) {
  const models::ModelPrecision& precision = config.training.precision;
  const int ranks = config.parallel.tensor;
  models::HostOpsOptions options;
  if (config.device != Device::kCuda) options.precision = precision;
  auto host = models::host_ops_form(options, ranks);
  if (config.device != Device::kCuda) return host;
  models::OpsTypes types = host->types();
  types.activations = types.operands = models::element_type(precision.compute);
  types.messages = ranks == 1 ? types.activations : models::element_type(precision.message);
  return std::make_unique<FormOfTypes>(std::move(host), types);
}

void check_size(const RunConfig& config) {
  const std::int64_t rows =
      std::int64_t{config.training.batch_sequences} * std::int64_t{config.training.sequence_tokens};
  if (rows > kMostRows) {
    throw ConfigError("/training/batch_sequences: got " + std::to_string(rows) +
                      " tokens in a micro-batch, want at most " + std::to_string(kMostRows));
  }
  // An upper bound in double: sizes may not fit into 64 bits.
  const auto width = static_cast<double>(config.model.width);
  const double of_row = 32.0 * config.model.layers * width + 32.0 * width + config.model.vocabulary;
  if (8.0 * config.training.accumulation * static_cast<double>(rows) * of_row > 0x1p60) {
    throw ConfigError("/model: got activations of more than 2^60 bytes in a step, want a smaller model or batch");
  }
}

std::vector<models::OuterFragment> fragments_of(const models::OuterOptions& options,
                                                const std::vector<models::Gpt2Tensor>& tensors) {
  std::vector<std::uint64_t> sizes;
  for (const models::Gpt2Tensor& tensor : tensors) {
    if (!tensor.is_copy) sizes.push_back(tensor.slice.local_elems());
  }
  try {
    return models::outer_fragments(options, sizes);
  } catch (const ConfigError& error) {
    throw ConfigError(std::string("/outer/fragments: ") + error.what());
  }
}

std::vector<RankCalls::OfFragment> outer_calls(const RunConfig& config, const std::vector<models::Gpt2Tensor>& tensors,
                                               models::PlannerOps& ops, comm::Communicator& workers,
                                               std::vector<comm::DryCall>& calls) {
  std::vector<RankCalls::OfFragment> outer;
  std::vector<sim::ElementRange> lost;
  for (const models::OuterFragment& fragment : fragments_of(config.outer, tensors)) {
    const std::uint64_t bytes = fragment.elems * sizeof(float);
    const comm::Tensor mean(comm::ElementType::kFloat32, {ops.reserve(bytes), bytes});
    models::start_outer_mean(workers, models::outer_message_name(outer.size()), mean, mean, &lost).wait();
    outer.push_back({calls.back(), fragment.starts_within(config.training.steps, config.outer.every_steps)});
  }
  return outer;
}

}  // namespace

RankCalls calls_of_rank(const RunConfig& config, const std::shared_ptr<const models::PipelinePlan>& plan,
                        const comm::ParallelNumbers& at) {
  check_size(config);
  const std::unique_ptr<models::OpsForm> form = form_of_calls(config);
  std::vector<comm::DryCall> calls;
  comm::DryCommunicator world(config.parallel.world_size(), config.parallel.rank(at), calls);
  RankGroups groups(config, plan, world);
  std::unique_ptr<models::PlannerOps> planner = models::make_planner_ops(*form, groups.tensor());
  models::PlannerOps& ops = *planner;
  models::Gpt2 model(model_of(config), std::move(planner), config.training.optimizer, slot_options(config),
                     groups.model_ranks());
  models::TrainingStep step(model, config.training.gradient_clip, config.training.gradient_norm,
                            config.training.loss_scale);
  calls.clear();
  RankCalls result;
  if (config.sharding.shards_state()) model.gather_values();
  model.spread_embedding();
  result.start = std::exchange(calls, {});
  const models::BatchShape shape{config.training.batch_sequences, config.training.sequence_tokens};
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.rows()), 0);
  // A classification head has one target in each sequence.
  std::vector<std::int32_t> targets(tokens.size(), config.model.classifies() ? models::kIgnoredTarget : 0);
  for (std::int64_t s = 1; s <= shape.batch; ++s) targets[static_cast<std::size_t>(s * shape.length - 1)] = 0;
  const models::MicroBatch batch{tokens, targets, shape};
  step.take(std::vector<models::MicroBatch>(static_cast<std::size_t>(config.training.accumulation), batch), 0);
  model.spread_embedding();
  result.step = std::exchange(calls, {});
  model.evaluate(batch);
  result.evaluation = std::exchange(calls, {});
  comm::Communicator* const workers = groups.layout().gradient_group();
  if (config.outer.is_on() && workers != nullptr) {
    result.outer = outer_calls(config, model.tensors(), ops, *workers, calls);
  }
  return result;
}

}  // namespace droptest::experiments
