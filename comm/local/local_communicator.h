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
/// waits for the others sleeps; the ranks that are awake do the work of the sleeping ranks.
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
  /// A send is buffered, and returns at once. A reduction of the caller reads the ranks' inputs and writes their
  /// outputs.
  void run(const CallArguments& arguments) override;
  PartReductions part_reductions() const override { return PartReductions::kInPlace; }
  /// The ranks that wait do the work in host memory, once all have started it. On a device a collective waits at once
  /// for the other ranks' starts, and is then in the order of their streams.
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> channel(int number) override;
  void abort(std::string_view reason) noexcept override;

 private:
  class Collective;
  class Reception;
  void send_now(const CallArguments& arguments);
  void exchange_now(std::span<const Send> sends, std::span<const Receive> receives);
  void barrier_now(const CallArguments& arguments);

  std::shared_ptr<LocalGroup> group_;
  int rank_;
  StreamTurns in_place_copy_turns_;
  GrowingDeviceMemory in_place_copy_;  ///< copy of the input of an all_to_all on a device
  /// The step, shared with the parts of a split and with channels; their threads read it.
  std::shared_ptr<std::atomic<std::uint64_t>> step_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::unique_ptr<Collective> blocking_;  ///< the collective of blocking calls
};

}  // namespace droptest::comm
