// SPDX-License-Identifier: Apache-2.0
// The `local` backend: ranks are threads of one process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/stream_turns.h"
#include "comm/local/local_group.h"

namespace droptest::comm {

/// One rank of a LocalGroup. Data is copied once, straight from the inputs to the outputs of the ranks. A rank that
/// waits for the others sleeps; the ranks that are awake do the work of those that sleep.
/// Tensors in device memory, all on one device, are reduced and copied there: each rank's share is queued on its own
/// stream, in order with the streams of all, and the host waits only for the other ranks' calls.
/// Determinism: reductions go in rank order for each element, so results do not depend on timing or thread count.
class LocalCommunicator final : public Communicator {
 public:
  /// `group` is shared by its ranks' communicators.
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank);
  ~LocalCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return group_->size(); }
  int world_rank(int rank) const override { return group_->world_rank(rank); }
  std::string_view backend() const override { return "local"; }
  /// Also sets the step of this rank's other communicators of the world.
  void begin_step(std::uint64_t step) override { *step_ = step; }
  using Communicator::all_reduce;
  void all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) override;
  void reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                      const Message& message) override;
  /// Without a copy: the reduction reads the ranks' inputs and writes their outputs.
  void all_reduce_with(ConstTensor input, Tensor output, PartReduction& reduction, const Message& message) override;
  PartReductions part_reductions() const override { return PartReductions::kInPlace; }
  void reduce_scatter_with(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                           PartReduction& reduction, const Message& message) override;
  void all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                  const Message& message) override;
  void all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                  std::span<const std::uint64_t> receive_counts, const Message& message) override;
  void broadcast(Tensor data, int root, const Message& message) override;
  /// Buffered: returns at once.
  void send(ConstTensor data, int destination, const Message& message) override;
  void recv(Tensor data, int source, const Message& message) override;
  void exchange(std::span<const Send> sends, std::span<const Receive> receives) override;
  /// In host memory the ranks that wait do the work, once all have started it. On a device a collective waits at once
  /// for the other ranks' starts, and is then in the order of their streams.
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  void barrier(const Message& message) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> twin(int number) override;
  void abort(std::string_view reason) noexcept override;

 private:
  class Collective;
  class Reception;
  /// A blocking collective, with the caller's own reduction where it has one.
  void meet(const CallArguments& arguments, PartReduction* reduction);

  std::shared_ptr<LocalGroup> group_;
  int rank_;
  StreamTurns in_place_copy_turns_;
  GrowingDeviceMemory in_place_copy_;  ///< of an all_to_all on a device
  /// Shared with the parts of a split and with twins, whose threads read it.
  std::shared_ptr<std::atomic<std::uint64_t>> step_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::unique_ptr<Collective> blocking_;  ///< that of blocking calls
};

}  // namespace droptest::comm
