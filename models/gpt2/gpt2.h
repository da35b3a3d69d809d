// SPDX-License-Identifier: Apache-2.0
// GPT-2 with tensor parallelism: one rank's part of the model, with its optimizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/buffer_use.h"
#include "comm/communicator.h"
#include "models/attention/stateful_attention.h"
#include "models/gpt2/batch.h"
#include "models/gpt2/gpt2_config.h"
#include "models/gpt2/parameter_store.h"
#include "models/gpt2/pipeline_plan.h"
#include "models/gpt2/pipeline_traffic.h"
#include "models/gpt2/sequence_cut.h"
#include "models/gpt2/stage.h"
#include "models/gpt2/stage_plan.h"
#include "models/ops/ops.h"
#include "models/optimizer.h"
#include "models/pipeline/pipeline_program.h"

namespace droptest::models {

/// The ranks that train a model together with those that share its layers.
struct ModelRanks {
  /// The ranks with the same part of the model: their gradients are averaged. With sequence parallelism those of all
  /// sequence ranks and of all replicas.
  DataParallel data;
  PipelineParallel pipeline{};
  SequenceParallel sequence{};
  comm::Communicator* all = nullptr;  ///< borrowed; null: one rank alone
  int data_stride = 1;                ///< in `all`: from a rank to that of the next replica with its coordinates
};

/// Further results of an evaluation than its loss: Gpt2::detail().
enum class EvaluationDetail : std::uint8_t { kLoss, kLogits, kMargins };

/// Whether a backward pass is the last one of its stage in a step.
enum class Follows : std::uint8_t { kPass, kUpdate };

/// The arguments of forward() and backward() for a step of a program.
struct PassInput {
  MicroBatch batch;
  double scale = 1;
  double mean_over = 0;
  Follows follows = Follows::kPass;
};

/// The place of a micro-batch between its passes.
struct StageSlot {
  int stage = 0;  ///< of the pipeline
  int slot = 0;
};

/// Pre-LN, tanh-GELU, learned positions, tied embeddings or a classification head, biases; Megatron's tensor
/// parallelism (Shoeybi et al. 2019), data parallelism and ZeRO (Rajbhandari et al. 2020). Where and in which element
/// types it computes is the operations' business. Owner: one rank. Ranks: all ranks of the operations' group call the
/// same methods in the same order, those of a pipeline the passes of their stages, and the others. Blocking: methods
/// that put work on a device do not wait for it, except where they say so. Determinism: results depend on the number of
/// ranks, not on threads.
class Gpt2 {
 public:
  /// Memory for parameters, gradients and moments is taken here. Ranks: all of a pipeline. Throws: ConfigError for a
  /// configuration that the ranks cannot have, and the errors of the operations.
  Gpt2(const Gpt2Config& config, std::unique_ptr<Ops> ops, const OptimizerConfig& optimizer = {},
       const SlotOptions& options = {}, const ModelRanks& ranks = {});
  /// Waits for the device, which an error may have left at work in this model's memory.
  ~Gpt2();
  Gpt2(const Gpt2&) = delete;
  Gpt2& operator=(const Gpt2&) = delete;

  const Gpt2Config& config() const { return config_; }
  /// Of values and gradients: float32 or float64.
  comm::ElementType parameter_type() const { return ops_->form().types().parameters; }

  /// Mean cross-entropy in nats over the targets that are not kIgnoredTarget, 0 where all are, in the memory of one
  /// block; the same on every rank of a lossless group. It is forward_backward's loss, bit for bit where both cut the
  /// rows into the same chunks and one rank has all tokens. Waits for the device. Shapes: tokens and targets [batch,
  /// length], whose positions are in [0, context); tokens in [0, vocabulary), targets too, or kIgnoredTarget; classes
  /// are targets of a classification head. Sequence ranks get the same batch, here and in the passes, and compute their
  /// tokens of it.
  double evaluate(const MicroBatch& batch, EvaluationDetail detail = EvaluationDetail::kLoss);
  double evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                  const BatchShape& shape) {
    return evaluate({tokens, targets, shape});
  }
  /// Of the last evaluate(). kLogits [batch, outputs of the head]: the logits at the target of each sequence. Outputs,
  /// tokens and heads of other ranks are zeros, so that the sum over the ranks of a replica is that of all; so is a
  /// sequence without a target. kMargins [targets of this rank's tokens, 2]: the largest logit of this rank's outputs,
  /// and the target's, minus infinity where another rank has it; none without the head. Maxima over tensor-parallel
  /// ranks say which targets are predicted.
  const std::vector<double>& detail() const { return detail_; }

  /// The next backward pass starts from zeros.
  void zero_gradients();
  /// Adds scale x d(loss) / d(parameter) to every gradient. The tokens may change when it returns. The loss is the sum
  /// over targets by `mean_over`, for example the number of targets of all micro-batches and ranks; kOwnTargets: by the
  /// number of targets of this micro-batch that are not ignored. With class weights, the loss of a target
  /// is multiplied by the weight of its class, and the sum of these weights takes the place of the number of targets.
  static constexpr double kOwnTargets = 0;
  void forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                        const BatchShape& shape, double scale, double mean_over = kOwnTargets,
                        Follows follows = Follows::kUpdate);
  /// The passes one by one: a forward pass leaves its saved activations in a slot, from 0, and the backward pass of
  /// that slot follows once; the slots may have any order. Micro-batches between their passes have one batch size and
  /// length, and no evaluation comes in between. A slot number alone is one of the rank's only stage.
  void forward(const StageSlot& at, const MicroBatch& batch);
  void forward(int slot, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
               const BatchShape& shape) {
    forward({stages_.front()->number, slot}, {tokens, targets, shape});
  }
  /// `follows` says when data-parallel ranks reduce their gradients, to means over those ranks. A backward pass is
  /// whole, or two: one without the gradients of weights, and one with these alone.
  void backward(const StageSlot& at, Action::Kind kind, double scale, double mean_over, Follows follows);
  void backward(int slot, double scale, double mean_over = kOwnTargets, Follows follows = Follows::kUpdate) {
    backward({stages_.front()->number, slot}, Action::Kind::kBackward, scale, mean_over, follows);
  }
  /// After the last backward pass of all stages: where two ranks have the embedding and the head, the one with the head
  /// owns the tied embedding, and gets the sum of both gradients. Ranks: those two; class embedding_gradient.
  void finish_backward();
  /// The owner's values of the tied embedding go to the other rank, whose copy no update changes. After each change of
  /// the owner's values: an update, uploaded ones. Ranks: as finish_backward(); others return at once. After an update,
  /// steps and evaluations want it. Throws: CheckError from those without it.
  void spread_embedding();

  /// The steps of this rank's program: forward and backward passes of its stages, and their messages. Between them no
  /// other pass. Shapes: micro-batches of one batch size and length, which begin_steps() is told.
  void begin_steps(int micro_batches, const BatchShape& shape);
  void take(const PipelineStep& step, const PassInput& input);
  const PipelineParallel& pipeline() const { return ranks_.pipeline; }
  /// The most micro-batches of this rank's stages, added up, that have been between their passes at once.
  int most_in_flight() const { return most_in_flight_; }

  /// Sums of the passes since zero_gradients() on this rank.
  struct StepSums {
    double losses = 0;            ///< of the passes, added up
    double gradient_squares = 0;  ///< of the tensor-parallel rank's gradients; replicated ones on rank 0 alone
  };
  /// Waits for the device, and for gradients that are on their way. Ranks: data-parallel ones, where those shard state.
  StepSums step_sums();

  /// The update of the passes since zero_gradients(), or none where loss or gradient norm is not finite. All of it is
  /// on the device; waits for it once, at the end. Ranks: all; collectives of class control, with ZeRO 1 and 2 of class
  /// parameter_gather too. The rule's data_ranks and data_stride are the model's.
  UpdateDecision update(double learning_rate, UpdateRule rule);
  /// One update with gradients multiplied by gradient_scale. The first call is step 1.
  void step(double learning_rate, double gradient_scale);
  /// An all-gather of all values over the network of parameter_gather, so that stale fills remember these values.
  /// Ranks: all that are data parallel.
  void gather_values() { store_.gather_values(); }
  /// Optimizer::reset().
  void reset_optimizer() { optimizer_.reset(); }
  /// No step follows: frees gradients and moments, so that there is room for a copy of the weights.
  void end_training() {
    optimizer_.release();
    store_.release_gradients();
  }
  /// Ranks whose gradients are averaged: replicas x sequence ranks.
  int data_ranks() const { return ranks_.data.ranks(); }
  /// Targets of this rank's tokens that are not ignored, or the sum of the weights of their classes.
  double weigh_own_targets(const MicroBatch& batch) {
    return weigh_targets(cut_.own(batch.targets, batch.shape, own_targets_), config_.class_weights);
  }
  /// These replicas train together from now on; of `ranks`, the
  /// pipeline's group and plan, and the sequence group, stay as they were. Between
  /// steps, without sharding. Ranks: all of the old and the new ones, each by itself.
  void set_replicas(const ModelRanks& ranks);
  /// Of data-parallel ranks. Ranks: all of those.
  comm::Communicator* data_group() const { return ranks_.data.group; }

  using Fields = ParameterStore::Fields;
  /// The parameters in host memory, in an order that is equal on all ranks; T is their type. On a device they are
  /// copies, which download() and the caller write.
  template <class T>
  std::span<Parameter<T>> parameters() {
    return store_.host<T>();
  }
  const std::vector<Gpt2Tensor>& tensors() const { return store_.tensors(); }
  /// Makes them show the values, and the gradients, of now. Waits for the device.
  void download(Fields fields);
  /// The model computes with the values in parameters() from now on. Waits for the device.
  void upload_values() { store_.upload_values(); }
  /// ParameterStore::release_copies().
  void release_copies() { store_.release_copies(); }

  /// Parameters, optimizer and the numbers of messages between two steps. Nothing else of a model outlives a step:
  /// dropout draws from the step's number.
  void visit_state(StateVisitor& visitor);
  /// Those that the state's tensors are in the memory of.
  Ops& ops() { return *ops_; }
  /// ParameterStore::set_gradient_ready().
  void set_gradient_ready(std::function<void(int)> gradient_ready) {
    store_.set_gradient_ready(std::move(gradient_ready));
  }

  /// Memory that the model holds now.
  MemoryUse memory_use() const;
  std::uint64_t memory_bytes() const { return memory_use().total(); }
  /// Of the activations: passes that took a slot, and those for which memory was allocated.
  comm::BufferUse slot_use() const { return {memory_bytes_, slots_taken_, slots_allocated_}; }

 private:
  /// The buffers of each of the rank's stages, for batches of one shape.
  struct Prepared {
    BatchShape shape;
    std::vector<std::vector<StageBuffers>> slots;
  };
  struct OwnStage {
    OwnStage(int number_in_pipeline, const StageRange& of_model, Keep keep_for, int slots, const Gpt2Config& config,
             ParameterStore& store, Ops& ops, const SlotOptions& options, StatefulAttention* attention)
        : number(number_in_pipeline),
          range(of_model),
          keep(keep_for),
          stage(config, of_model, store, ops, options, attention),
          in_use(static_cast<std::size_t>(slots)),
          targets(in_use.size()) {}

    int number;
    StageRange range;
    Keep keep;
    SentPast sent_past{};
    Stage stage;
    std::vector<bool> in_use;     ///< slots that are between their two passes
    std::vector<double> targets;  ///< of each slot's micro-batch: weigh_own_targets()
    int passes = 0;               ///< backward passes of this step that set or add gradients of inputs' layers
    int weight_passes = 0;
  };
  /// The ranks with the embedding and with the head.
  struct Ends {
    std::unique_ptr<comm::Communicator> group;
    int owner = 0;  ///< its rank in the group: the one with the head
  };
  /// What they send each other.
  struct TiedEmbedding {
    std::size_t tensor = 0;
    bool is_owner = false;
    std::vector<std::uint64_t> counts;  ///< all elements for the owner, none for the other
    comm::Tensor own_part(const comm::Tensor& all) const;
  };
  TiedEmbedding tied_embedding() const;
  void check_embedding_is_spread() const;
  std::vector<std::unique_ptr<OwnStage>> make_stages(const SlotOptions& options);
  void compute(const PipelineStep& step, const PassInput& input);
  /// Sets the gradient of a stage's input to zero where the input was lost, if it is to have none there.
  void stop_lost_gradients(StageBuffers& buffers);
  /// Copies the result of the action to where stages on this rank need it.
  void pass_on(const Action& action);
  void start_receive(const PipelineStep& step, StageBuffers& to);
  void take_evaluated(int stage, StageBuffers& to);
  void give_evaluated(int stage, StageBuffers& from);
  LogitVisitor detail_visitor(EvaluationDetail detail, const StageExtents& extents,
                              std::span<const std::int32_t> targets);
  /// Its place in stages_; absent: another rank has it.
  std::optional<std::size_t> own_stage(int stage) const;
  bool is_whole() const { return stages_.size() == 1 && stages_.front()->range.count() == config_.layers; }
  bool is_between_passes() const;
  /// Kept until batches have another shape. keep: kForBackward or kNothing.
  Prepared& prepared(const BatchShape& shape, Keep keep);
  /// The sequences of a forward pass that follows.
  void take_sequences(const MicroBatch& batch, StageBuffers& to);
  /// Throws: CheckError for a stage or a slot that this rank does not have.
  std::size_t stage_index(const StageSlot& at) const;
  StageBuffers& buffers(const StageSlot& at);

  Gpt2Config config_;
  SlotOptions options_;
  ModelRanks ranks_;
  std::unique_ptr<Ops> ops_;
  SequenceCut cut_;
  std::unique_ptr<StatefulAttention> attention_;  ///< of all stages; null: attention has no state
  ParameterStore store_;
  Optimizer optimizer_;
  GradientSquares squares_;
  std::vector<std::unique_ptr<OwnStage>> stages_;

  int passes_ = 0;  ///< backward passes of this step; before the first one gradients of any value count as zero
  int in_flight_ = 0;
  int most_in_flight_ = 0;

  std::unique_ptr<Ops::Memory> memory_;  ///< of the activations
  std::uint64_t memory_bytes_ = 0;
  std::uint64_t slots_taken_ = 0;
  std::uint64_t slots_allocated_ = 0;
  std::optional<PipelineTraffic> traffic_;  ///< absent: all stages are here
  std::optional<Ends> ends_;         ///< absent: this rank is none of them or has both, or the embedding is frozen
  bool embedding_is_spread_ = true;  ///< false: after an update, until spread_embedding()
  std::optional<Prepared> training_;
  std::optional<Prepared> evaluation_;
  std::vector<std::int32_t> own_tokens_;
  std::vector<std::int32_t> own_targets_;
  std::vector<double> detail_;  ///< of the last evaluation
};

}  // namespace droptest::models
