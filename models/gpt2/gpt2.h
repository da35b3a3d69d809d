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

/// The groups of ranks that train a model, in addition to the tensor-parallel group of its operations.
struct ModelRanks {
  /// The ranks with the same part of the model, among which gradients are averaged: all replicas, and with sequence
  /// parallelism all sequence ranks of them.
  DataParallel data;
  PipelineParallel pipeline{};
  SequenceParallel sequence{};
  comm::Communicator* all = nullptr;  ///< all ranks of the training; borrowed; null: this rank is the only one
  int data_stride = 1;                ///< distance in `all` from a rank to the corresponding rank of the next replica
};

/// The results of an evaluation: the loss, and optionally logits or margins for Gpt2::detail().
enum class EvaluationDetail : std::uint8_t { kLoss, kLogits, kMargins };

/// Whether a backward pass is followed by another pass of its stage or by the update.
enum class Follows : std::uint8_t { kPass, kUpdate };

/// The arguments of forward() and backward() for one step of a pipeline program.
struct PassInput {
  MicroBatch batch;
  double scale = 1;
  double mean_over = 0;
  Follows follows = Follows::kPass;
};

/// The place of a micro-batch between its passes.
struct StageSlot {
  int stage = 0;  ///< number of the stage in the pipeline
  int slot = 0;
};

/// Pre-LN, tanh-GELU, learned positions, tied embeddings or a classification head, biases; Megatron's tensor
/// parallelism (Shoeybi et al. 2019), data parallelism and ZeRO (Rajbhandari et al. 2020). The operations decide on
/// which device and in which element types it computes. Owner: one rank. Ranks: all ranks of the operations' group call
/// the same methods in the same order. Ranks of a pipeline call the passes of their own stages, and all other methods.
/// With ZeRO 3, passes, evaluate() and download() are calls of all data-parallel ranks together; with sequence
/// parallelism, passes and evaluate() are calls of all sequence ranks.
/// Blocking: methods that put work on a device do not wait for it, unless their comments say so. Determinism: results
/// depend on the number of ranks, not on threads.
class Gpt2 {
 public:
  /// Allocates parameters, gradients and moments. Ranks: all of a pipeline. Throws: ConfigError for a configuration
  /// that these ranks do not support, and the errors of the operations.
  Gpt2(const Gpt2Config& config, std::unique_ptr<Ops> ops, const OptimizerConfig& optimizer = {},
       const SlotOptions& options = {}, const ModelRanks& ranks = {});
  /// Waits for the device, which may still use the model's memory after an error.
  ~Gpt2();
  Gpt2(const Gpt2&) = delete;
  Gpt2& operator=(const Gpt2&) = delete;

  const Gpt2Config& config() const { return config_; }
  /// The type of values and gradients: float32 or float64.
  comm::ElementType parameter_type() const { return ops_->form().types().parameters; }

  /// The mean cross-entropy in nats over the targets that are not kIgnoredTarget; 0 if all are ignored. It needs the
  /// memory of one block. It is equal on all ranks with the head if nothing is lost; pipeline ranks without the head
  /// return 0. It equals the loss of forward_backward(), bit for bit if both cut the rows into the same chunks and one
  /// rank has all tokens. Waits for the device. Shapes: tokens and targets [batch, length] at positions in [0,
  /// context). Tokens are in [0, vocabulary); targets are tokens, or classes for a classification head, or
  /// kIgnoredTarget. All sequence ranks get the same batch, here and in the passes, and each computes its own tokens.
  double evaluate(const MicroBatch& batch, EvaluationDetail detail = EvaluationDetail::kLoss);
  double evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                  const BatchShape& shape) {
    return evaluate({tokens, targets, shape});
  }
  /// The detail of the last evaluate(). kLogits [batch, outputs of the head]: the logits at the target of each
  /// sequence. Entries of outputs that other ranks have, and of sequences without a target, are zeros, so that the sum
  /// over the ranks of a replica gives all logits. kMargins [targets of this rank's tokens, 2]: the largest logit among
  /// this rank's outputs, and the logit of the target, minus infinity if another rank has it; empty without the head.
  /// The maxima over tensor-parallel ranks show which targets are predicted.
  const std::vector<double>& detail() const { return detail_; }

  /// The next backward pass starts from zeros.
  void zero_gradients();
  /// Adds scale x d(loss) / d(parameter) to every gradient. The tokens may change when it returns. The loss is the sum
  /// over targets divided by `mean_over`, for example the number of targets of all micro-batches and ranks. kOwnTargets
  /// divides by the number of targets of this micro-batch that are not ignored. With class weights, the loss of each
  /// target is multiplied by the weight of its class, and the sum of these weights replaces the number of targets.
  static constexpr double kOwnTargets = 0;
  void forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                        const BatchShape& shape, double scale, double mean_over = kOwnTargets,
                        Follows follows = Follows::kUpdate);
  /// Single passes. A forward pass saves its activations in a slot, numbered from 0, and exactly one backward pass of
  /// that slot follows; slots may be used in any order. All micro-batches between their passes have the same batch size
  /// and length, and no evaluation comes in between. The overloads with a slot number are for ranks with a single
  /// stage.
  void forward(const StageSlot& at, const MicroBatch& batch);
  void forward(int slot, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
               const BatchShape& shape) {
    forward({stages_.front()->number, slot}, {tokens, targets, shape});
  }
  /// `follows` says whether this is the last pass of the step. The last pass starts the reductions of gradients to
  /// means over data-parallel ranks, unless ShardOptions reduce after each pass. A backward pass is either whole, or
  /// split in two: the first part computes everything except the gradients of weights, the second part only these.
  void backward(const StageSlot& at, Action::Kind kind, double scale, double mean_over, Follows follows);
  void backward(int slot, double scale, double mean_over = kOwnTargets, Follows follows = Follows::kUpdate) {
    backward({stages_.front()->number, slot}, Action::Kind::kBackward, scale, mean_over, follows);
  }
  /// Call it after the last backward pass of all stages. If different ranks have the embedding and the head, the rank
  /// with the head owns the tied embedding and gets the sum of both gradients. Ranks: those two; class
  /// embedding_gradient.
  void finish_backward();
  /// Sends the owner's values of the tied embedding to the other rank, because no update changes that copy. Call it
  /// after each change of the owner's values: an update or upload_values(). Without it, the next step or evaluation
  /// after an update throws CheckError. Ranks: as finish_backward(); others return at once.
  void spread_embedding();

  /// The steps of this rank's program: forward and backward passes of its stages, and their messages. No other pass may
  /// come in between. Shapes: all micro-batches have the batch size and length of begin_steps().
  void begin_steps(int micro_batches, const BatchShape& shape);
  void take(const PipelineStep& step, const PassInput& input);
  const PipelineParallel& pipeline() const { return ranks_.pipeline; }
  /// The largest number of micro-batches, over all stages of this rank together, that were between their passes at one
  /// time.
  int most_in_flight() const { return most_in_flight_; }

  /// Sums of the passes since zero_gradients() on this rank.
  struct StepSums {
    double losses = 0;            ///< sum of the losses of the passes
    double gradient_squares = 0;  ///< sum of squares of this rank's gradients; only rank 0 counts replicated tensors
  };
  /// Waits for the device and for reductions of gradients. Ranks: all data-parallel ranks if they shard state.
  StepSums step_sums();

  /// The update with the gradients since zero_gradients(). It is skipped if loss or gradient norm is not finite. All
  /// work is on the device; the host waits once, at the end. Ranks: all; collectives of class control, with ZeRO 1 and
  /// 2 also of class parameter_gather. The model sets the layout of the ranks in the rule.
  UpdateDecision update(double learning_rate, UpdateRule rule);
  /// One update with gradients multiplied by gradient_scale. The first call is step 1.
  void step(double learning_rate, double gradient_scale);
  /// An all-gather of all values in class parameter_gather, so that stale fills remember these values. Does nothing
  /// without sharding. Ranks: all data-parallel ranks.
  void gather_values() { store_.gather_values(); }
  /// Optimizer::reset().
  void reset_optimizer() { optimizer_.reset(); }
  /// Frees gradients and moments, so that there is room for a copy of the weights. No step may follow.
  void end_training() {
    optimizer_.release();
    store_.release_gradients();
  }
  /// The number of ranks among which gradients are averaged: replicas x sequence ranks.
  int data_ranks() const { return ranks_.data.ranks(); }
  /// The number of targets of this rank's tokens that are not ignored, or the sum of the weights of their classes.
  double weigh_own_targets(const MicroBatch& batch) {
    return weigh_targets(cut_.own(batch.targets, batch.shape, own_targets_), config_.class_weights);
  }
  /// Changes the replicas that train together. The pipeline's group and plan and the sequence group in `ranks` must not
  /// change. Call it between steps; not with sharding. Ranks: all of the old and the new ones; it is not a collective.
  void set_replicas(const ModelRanks& ranks);
  /// The data-parallel group. Ranks: all data-parallel ranks take part in its collectives.
  comm::Communicator* data_group() const { return ranks_.data.group; }

  using Fields = ParameterStore::Fields;
  /// The parameters in host memory, in the same order on all ranks; T is their type. On a device, and with sharded or
  /// offloaded values, they are copies, which download() and the caller write.
  template <class T>
  std::span<Parameter<T>> parameters() {
    return store_.host<T>();
  }
  const std::vector<Gpt2Tensor>& tensors() const { return store_.tensors(); }
  /// Copies the present values, and optionally gradients, to parameters(). Waits for the device. Ranks: with ZeRO 3 all
  /// of the data-parallel group; class control.
  void download(Fields fields);
  /// Copies the values in parameters() to the model. Waits for the device.
  void upload_values() { store_.upload_values(); }
  /// ParameterStore::release_copies().
  void release_copies() { store_.release_copies(); }

  /// Shows the state between two steps: parameters, optimizer and the numbers of messages. Nothing else of a model
  /// outlives a step, because dropout draws from the step number.
  void visit_state(StateVisitor& visitor);
  /// The operations of the model; the tensors of the state are in their memory.
  Ops& ops() { return *ops_; }
  /// ParameterStore::set_gradient_ready().
  void set_gradient_ready(std::function<void(int)> gradient_ready) {
    store_.set_gradient_ready(std::move(gradient_ready));
  }

  /// The memory that the model uses now.
  MemoryUse memory_use() const;
  std::uint64_t memory_bytes() const { return memory_use().total(); }
  /// The use of the activations' memory: its bytes, the passes that took a slot, and the passes for which memory was
  /// allocated.
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
    std::vector<bool> in_use;     ///< whether each slot is between its two passes
    std::vector<double> targets;  ///< weigh_own_targets() of each slot's micro-batch
    int passes = 0;               ///< backward passes of this step that compute gradients of inputs
    int weight_passes = 0;
  };
  /// The ranks with the embedding and with the head.
  struct Ends {
    std::unique_ptr<comm::Communicator> group;
    int owner = 0;  ///< rank in `group` that has the head
  };
  /// The tensor that the two ranks exchange.
  struct TiedEmbedding {
    std::size_t tensor = 0;
    bool is_owner = false;
    std::vector<std::uint64_t> counts;  ///< counts of the exchange: all elements for the owner, none for the other rank
    comm::Tensor own_part(const comm::Tensor& all) const;
  };
  TiedEmbedding tied_embedding() const;
  void check_embedding_is_spread() const;
  std::vector<std::unique_ptr<OwnStage>> make_stages(const SlotOptions& options);
  void compute(const PipelineStep& step, const PassInput& input);
  /// Sets the gradient of a stage's input to zero at lost elements, if stops_lost_gradients().
  void stop_lost_gradients(StageBuffers& buffers);
  /// Copies the result of the action to the stages on this rank that need it.
  void pass_on(const Action& action);
  void start_receive(const PipelineStep& step, StageBuffers& to);
  void take_evaluated(int stage, StageBuffers& to);
  void give_evaluated(int stage, StageBuffers& from);
  LogitVisitor detail_visitor(EvaluationDetail detail, const StageExtents& extents,
                              std::span<const std::int32_t> targets);
  /// The index of the stage in stages_; absent: another rank has it.
  std::optional<std::size_t> own_stage(int stage) const;
  bool is_whole() const { return stages_.size() == 1 && stages_.front()->range.count() == config_.layers; }
  bool is_between_passes() const;
  /// The buffers for batches of that shape, reused until the shape changes. keep: kForBackward or kNothing.
  Prepared& prepared(const BatchShape& shape, Keep keep);
  /// Sets the sequences of the next forward pass.
  void take_sequences(const MicroBatch& batch, StageBuffers& to);
  /// Throws: CheckError for a stage or a slot that this rank does not have.
  std::size_t stage_index(const StageSlot& at) const;
  StageBuffers& buffers(const StageSlot& at);

  Gpt2Config config_;
  SlotOptions options_;
  ModelRanks ranks_;
  std::unique_ptr<Ops> ops_;
  SequenceCut cut_;
  std::unique_ptr<StatefulAttention> attention_;  ///< shared by all stages; null: attention has no state
  ParameterStore store_;
  Optimizer optimizer_;
  GradientSquares squares_;
  std::vector<std::unique_ptr<OwnStage>> stages_;

  int passes_ = 0;  ///< backward passes of this step; before the first one, gradients count as zero
  int in_flight_ = 0;
  int most_in_flight_ = 0;

  std::unique_ptr<Ops::Memory> memory_;  ///< memory of the activations
  std::uint64_t memory_bytes_ = 0;
  std::uint64_t slots_taken_ = 0;
  std::uint64_t slots_allocated_ = 0;
  std::optional<PipelineTraffic> traffic_;  ///< absent: all stages are here
  std::optional<Ends> ends_;                ///< absent: this rank has neither end or both, or the embedding is frozen
  bool embedding_is_spread_ = true;         ///< false from an update until spread_embedding()
  std::optional<Prepared> training_;
  std::optional<Prepared> evaluation_;
  std::vector<std::int32_t> own_tokens_;
  std::vector<std::int32_t> own_targets_;
  std::vector<double> detail_;  ///< detail of the last evaluation
};

}  // namespace droptest::models
