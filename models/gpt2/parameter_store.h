// SPDX-License-Identifier: Apache-2.0
// One rank's parameters: values and gradients in arenas of their device, whole or sharded.
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

/// The ranks that have the same part of a model and train on other batches.
struct DataParallel {
  comm::Communicator* group = nullptr;  ///< borrowed; null: one replica alone
  ShardOptions sharding;

  int ranks() const { return group == nullptr ? 1 : group->world_size(); }
  int rank() const { return group == nullptr ? 0 : group->rank(); }
};

/// Bytes of a rank's memory by kind.
struct MemoryUse {
  std::uint64_t parameters = 0;  ///< with the copies that GEMMs read
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t activations = 0;  ///< slots and working memory
  std::uint64_t offload = 0;      ///< windows of the values that are outside of memory, and buffers of activations
  std::uint64_t offloaded = 0;    ///< those outside; no part of the total

  std::uint64_t total() const { return parameters + gradients + optimizer + activations + offload; }
};

/// Owner: one rank's model. Ranks: where there are others that are data parallel, those make the same calls.
class ParameterStore {
 public:
  /// Whether each tensor-parallel rank has the gradients of replicated tensors from its own tokens alone. The store
  /// adds them up over the operations' group when they are ready, before replicas reduce them: class sequence_backward.
  enum class ReplicatedGradients : std::uint8_t { kWhole, kOfOwnTokens };
  /// Gradients are zero, values zero on the host and unspecified on a device. `moments`: numbers of the optimizer for
  /// each element, which may be outside of memory. The operations are borrowed. Throws: ConfigError for options of
  /// sharding without meaning, or without room for what is outside of memory.
  ParameterStore(std::vector<Gpt2Tensor> tensors, Ops& ops, const DataParallel& data = {}, int moments = 0,
                 ReplicatedGradients replicated = ReplicatedGradients::kWhole);

  const ParameterTable& table() const { return table_; }
  const std::vector<Gpt2Tensor>& tensors() const { return table_.tensors; }
  const ShardPlan& plan() const { return plan_; }
  /// Tensor number i. The same at any time; readable, and its gradient writable, while its layer is acquired.
  Weight weight(std::size_t i) const;

  /// A pass reads the weights of a block (kOutsideOfBlocks: of embeddings, last norm and head) and writes their
  /// gradients from acquire() to release(), for at most two blocks at a time. expect() names the next one: the
  /// all-gather of its sharded values starts then.
  void expect(int layer);
  void acquire(int layer);
  void release(int layer);
  /// A backward pass has added its micro-batch to all gradients of that layer: once for each layer and micro-batch, the
  /// last block first and kOutsideOfBlocks last. A device may be at work on them.
  void on_gradient_ready(int layer);
  /// Calls `gradient_ready(layer)` then, after buckets of them have started their way.
  void set_gradient_ready(std::function<void(int)> gradient_ready) { gradient_ready_ = std::move(gradient_ready); }

  /// How a backward pass writes gradients that are to be set or added to in the sum over the step.
  GradientMode gradient_mode(GradientMode of_sum) const;
  /// The next backward pass is number `so_far` of the step, from 0; `last`: none follows. Gradients are reduced as they
  /// become ready, as the options say.
  void expect_gradients(int so_far, bool last);
  /// Operations from now on see the step's reduced gradients, in own_gradients().
  void finish_gradients();
  /// The optimizer has changed own_values(): the other ranks get them, or will when they need them.
  void spread_values();
  /// An all-gather of all values over the network of parameter_gather, so that stale fills remember these values.
  void gather_values();

  /// The replicas that gradients are averaged over from now on. Null: this one alone. Between steps, without sharding.
  void set_group(comm::Communicator* group);

  /// Before memory is freed: gives up the collectives that an error left under way, with their group where the error
  /// unwinds the program. A device may still be at work on their stream (Ops::end_traffic()). No traffic follows.
  void abandon_traffic() noexcept { traffic_.reset(); }

  /// Of tensor number i, without its padding. Its layer is acquired.
  comm::Tensor values_of(std::size_t i) const { return without_padding(values_, i); }
  comm::Tensor gradients_of(std::size_t i) const { return without_padding(gradients_, i); }
  /// values_of(i) have been written: the rounded copy follows.
  void round_value(std::size_t i);

  /// Before each pass: values change between passes in more ways than one. Also adds adapters to their weights.
  void round_values();

  /// Values and optimizer state outside of memory; null: all is in memory.
  OffloadedState* offloaded() { return offloaded_.get(); }
  /// The elements that this rank updates: parts of ShardPlan::own(). Values: in memory.
  comm::Tensor own_values(const OwnPart& part) const { return values_.own(part); }
  comm::Tensor own_gradients(const OwnPart& part) const { return gradients_.own(part); }
  /// Their values in 16 bits, which the optimizer writes; or empty.
  comm::Tensor own_rounded(const OwnPart& part) const;

  comm::ElementType type() const { return types_.parameters; }
  /// All gradients in memory.
  comm::Tensor gradients() const { return gradients_.all(); }

  /// The parameters in host memory: on the host themselves, else copies, also where values are sharded. T is the type
  /// of the values. Gradients that are sharded are not shown.
  template <class T>
  std::span<Parameter<T>> host();
  enum class Fields : std::uint8_t { kValues, kValuesAndGradients };
  /// Makes copies in host memory equal to the device's. Waits for the device.
  void download(Fields fields);
  /// Makes the values equal to the copies of a device or of offloaded values. Waits for the device. The copies of
  /// offloaded values end here: host() makes new ones.
  void upload_values();

  /// No backward pass follows: frees all gradients. host() shows none from then on.
  void release_gradients();
  /// Frees the copies of offloaded values, which host() makes anew; other copies stay.
  void release_copies();

  /// Values and the rounded copy, or this rank's part of them. Gradients are no state: a step starts from zeros.
  void visit_state(StateVisitor& visitor);

  /// Memory that is taken now, without moments in memory and activations.
  MemoryUse memory_use() const;

 private:
  std::size_t unit_of(int layer) const;
  comm::Tensor without_padding(const ParameterArena& arena, std::size_t i) const;
  /// Tensors that no update of this rank changes. They stay in memory where values are offloaded.
  std::vector<std::size_t> untrained() const;
  bool has_offloaded_values() const { return offloaded_ != nullptr && offloaded_->has_values(); }
  bool copies_are_apart() const {
    return ops_.stream() != nullptr || plan_.options().shards_values() || has_offloaded_values();
  }
  template <class T>
  void make_host_parameters();
  void sum_replicated_gradients(std::size_t unit);
  void place_adapters();
  /// The gradients of a block's adapters, from those of their weights.
  void adapter_gradients(int layer);
  enum Copied : std::size_t { kValueCopies, kGradientCopies };
  std::span<std::byte> copy_of(Copied arena);
  /// Of the values of tensor number i, within copy_of(kValueCopies).
  std::span<std::byte> value_copy(std::size_t i);

  ParameterTable table_;
  ShardPlan plan_;
  Ops& ops_;
  OpsTypes types_;
  ParameterArena values_;
  ParameterArena gradients_;
  ParameterArena rounded_;  ///< the values in the type that GEMMs read, where that is not their own
  std::unique_ptr<Ops::Ranges> rounded_ranges_;
  std::unique_ptr<OffloadedState> offloaded_;
  std::optional<ParameterTraffic> traffic_;
  std::function<void(int)> gradient_ready_;
  std::array<ZeroedMemory, 2> copies_;  ///< in host memory, from when they are first asked for
  std::vector<ReplicatedRun> partial_;  ///< gradients that are summed over tensor-parallel ranks
  /// A weight with its adapter: passes read `merged`.
  struct Adapter {
    std::size_t base = 0, a = 0, b = 0;  ///< numbers of tensors
    AdapterShape shape;
    comm::Tensor merged;
    std::string sum;  ///< the name of the sum over tensor-parallel ranks of the gradient that all of them have
  };
  std::vector<Adapter> adapters_;
  std::unique_ptr<Ops::Memory> merged_;
  bool is_last_pass_ = false;  ///< of the step
  std::variant<std::vector<Parameter<float>>, std::vector<Parameter<double>>> host_;
};

}  // namespace droptest::models
