// SPDX-License-Identifier: Apache-2.0
// One rank's parameters: values and gradients in arenas, whole or sharded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "models/gpt2/offloaded_state.h"
#include "models/gpt2/parameter_arena.h"
#include "models/gpt2/parameter_table.h"
#include "models/gpt2/parameter_traffic.h"
#include "models/gpt2/shard_plan.h"
#include "models/host_buffer.h"
#include "models/kernels/adapter.h"
#include "models/ops/ops.h"
#include "models/parameter.h"
#include "models/state_visitor.h"

namespace droptest::models {

/// The ranks with the same part of a model, which train on different batches.
struct DataParallel {
  comm::Communicator* group = nullptr;  ///< borrowed; null: there is one replica
  ShardOptions sharding;

  int ranks() const { return group == nullptr ? 1 : group->world_size(); }
  int rank() const { return group == nullptr ? 0 : group->rank(); }
};

/// Bytes of a rank's memory by kind.
struct MemoryUse {
  std::uint64_t parameters = 0;  ///< values, rounded copies that GEMMs read, and weights merged with adapters
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t activations = 0;  ///< slots and working memory
  std::uint64_t offload = 0;      ///< buffers of offloaded state and activations
  std::uint64_t offloaded = 0;    ///< offloaded bytes; not part of the total

  std::uint64_t total() const { return parameters + gradients + optimizer + activations + offload; }
};

/// Values and gradients of one rank's tensors, and their collectives over data-parallel ranks. Owner: one rank's model.
/// Ranks: all data-parallel ranks make the same calls.
class ParameterStore {
 public:
  /// Whether a rank's gradients of replicated tensors are those of all tokens, or only of the tokens of this
  /// tensor-parallel rank. In the latter case, the store adds them up over the operations' group before replicas reduce
  /// them, in class sequence_backward.
  enum class ReplicatedGradients : std::uint8_t { kWhole, kOfOwnTokens };
  /// Gradients begin as zeros; values are zeros on the host and unspecified on a device. `moments` is the number of
  /// optimizer moments of each element, which may be offloaded. The operations are borrowed. Throws: ConfigError for
  /// inconsistent sharding options, or if there is no room for offloaded state.
  ParameterStore(std::vector<Gpt2Tensor> tensors, Ops& ops, const DataParallel& data = {}, int moments = 0,
                 ReplicatedGradients replicated = ReplicatedGradients::kWhole);

  const ParameterTable& table() const { return table_; }
  const std::vector<Gpt2Tensor>& tensors() const { return table_.tensors; }
  const ShardPlan& plan() const { return plan_; }
  /// Tensor number i; the result is the same at any time. The value is readable and the gradient writable while its
  /// layer is acquired.
  Weight weight(std::size_t i) const;

  /// A pass reads the weights of a block (kOutsideOfBlocks: of embeddings, last norm and head) and writes their
  /// gradients between acquire() and release(), for at most two blocks at a time. expect() announces the next block, so
  /// that the all-gather of its sharded values, or the read of its offloaded values, starts.
  void expect(int layer);
  void acquire(int layer);
  void release(int layer);
  /// Call it when a backward pass has added its micro-batch to all gradients of that layer, the last block first and
  /// kOutsideOfBlocks last: for a whole model once for each layer and micro-batch, for a stage of a pipeline once for
  /// each layer, after its last backward pass of the step. A device may still be at work on them.
  void on_gradient_ready(int layer);
  /// on_gradient_ready() calls `gradient_ready(layer)`, after the reductions of full buckets have started.
  void set_gradient_ready(std::function<void(int)> gradient_ready) { gradient_ready_ = std::move(gradient_ready); }

  /// Whether a backward pass must set gradients or add to them, if `of_sum` is the mode for the sum over the step.
  GradientMode gradient_mode(GradientMode of_sum) const;
  /// Call it before backward pass number `so_far` of the step, from 0; `last` says that none follows. The options
  /// decide whether gradients are reduced as they become ready in this pass.
  void expect_gradients(int so_far, bool last);
  /// Operations from now on see the step's reduced gradients in own_gradients().
  void finish_gradients();
  /// Call it when the optimizer has changed own_values(). The other ranks get the values now, or with sharded values
  /// when they need them.
  void spread_values();
  /// An all-gather of all values in class parameter_gather, so that stale fills remember these values. Does nothing
  /// without sharding.
  void gather_values();

  /// Sets the replicas among which gradients are averaged from now on; null: only this one. Call it between steps; not
  /// with sharding.
  void set_group(comm::Communicator* group);

  /// Gives up the collectives that an error has left under way; call it before memory is freed. No traffic may follow.
  /// A device may still be at work on their stream (Ops::end_traffic()).
  void abandon_traffic() noexcept { traffic_.reset(); }

  /// The values and the gradients of tensor number i, without padding. Its layer must be acquired.
  comm::Tensor values_of(std::size_t i) const { return without_padding(values_, i); }
  comm::Tensor gradients_of(std::size_t i) const { return without_padding(gradients_, i); }
  /// Updates the rounded copy after values_of(i) have been written.
  void round_value(std::size_t i);

  /// Adds adapters to their weights, and updates the rounded copies if updates do not (Ops::round_values()). Call it
  /// before each pass, because other calls than updates can change values between passes, too.
  void round_values();

  /// The offloaded values and moments; null: all state is in memory.
  OffloadedState* offloaded() { return offloaded_.get(); }
  /// The elements that this rank updates; `part` is one of ShardPlan::own(). Values must be in memory.
  comm::Tensor own_values(const OwnPart& part) const { return values_.own(part); }
  comm::Tensor own_gradients(const OwnPart& part) const { return gradients_.own(part); }
  /// The 16-bit copy of own_values(), which the optimizer writes; may be empty.
  comm::Tensor own_rounded(const OwnPart& part) const;

  comm::ElementType type() const { return types_.parameters; }
  /// All gradients that are in memory.
  comm::Tensor gradients() const { return gradients_.all(); }

  /// The parameters in host memory. They are the parameters themselves only on the host without sharded or offloaded
  /// values, otherwise copies. T is the type of the values. Sharded gradients are not shown.
  template <class T>
  std::span<Parameter<T>> host();
  enum class Fields : std::uint8_t { kValues, kValuesAndGradients };
  /// Updates the copies in host memory with the present values, and optionally gradients. Waits for the device.
  void download(Fields fields);
  /// Writes the copies in host memory back to the values. Waits for the device. Copies of offloaded values end here:
  /// host() makes new ones.
  void upload_values();

  /// Frees all gradients; no backward pass may follow. host() shows no gradients from then on.
  void release_gradients();
  /// Frees the copies in host memory if values are offloaded; host() makes new ones. Otherwise the copies stay.
  void release_copies();

  /// Shows values and the rounded copy, or this rank's part of them. Gradients are no state, because a step starts from
  /// zeros.
  void visit_state(StateVisitor& visitor);

  /// The memory that the store uses now. Moments in memory and activations are not included.
  MemoryUse memory_use() const;

 private:
  std::size_t unit_of(int layer) const;
  comm::Tensor without_padding(const ParameterArena& arena, std::size_t i) const;
  /// The tensors that no update of this rank changes. They stay in memory even if values are offloaded.
  std::vector<std::size_t> untrained() const;
  bool has_offloaded_values() const { return offloaded_ != nullptr && offloaded_->has_values(); }
  bool copies_are_apart() const {
    return ops_.stream() != nullptr || plan_.options().shards_values() || has_offloaded_values();
  }
  template <class T>
  void make_host_parameters();
  void sum_replicated_gradients(std::size_t unit);
  void place_adapters();
  /// Computes the gradients of a block's adapters from those of their weights.
  void adapter_gradients(int layer);
  enum Copied : std::size_t { kValueCopies, kGradientCopies };
  std::span<std::byte> copy_of(Copied arena);
  /// The values of tensor number i within copy_of(kValueCopies).
  std::span<std::byte> value_copy(std::size_t i);

  ParameterTable table_;
  ShardPlan plan_;
  Ops& ops_;
  OpsTypes types_;
  ParameterArena values_;
  ParameterArena gradients_;
  ParameterArena rounded_;  ///< values in the operand type of GEMMs; empty if that is the type of the values
  std::unique_ptr<Ops::Ranges> rounded_ranges_;
  std::unique_ptr<OffloadedState> offloaded_;
  std::optional<ParameterTraffic> traffic_;
  std::function<void(int)> gradient_ready_;
  std::array<ZeroedMemory, 2> copies_;  ///< copies in host memory, made at the first use
  std::vector<ReplicatedRun> partial_;  ///< gradients to be summed over tensor-parallel ranks
  /// A weight with its adapter: passes read `merged`.
  struct Adapter {
    std::size_t base = 0, a = 0, b = 0;  ///< numbers of the weight, A and B
    AdapterShape shape;
    comm::Tensor merged;
    std::string sum;  ///< name of the sum over tensor-parallel ranks of the replicated gradient
  };
  std::vector<Adapter> adapters_;
  std::unique_ptr<Ops::Memory> merged_;
  bool is_last_pass_ = false;  ///< whether this is the last backward pass of the step
  std::variant<std::vector<Parameter<float>>, std::vector<Parameter<double>>> host_;
};

}  // namespace droptest::models
