// SPDX-License-Identifier: Apache-2.0
// A communicator of a single rank, which sends nothing and writes down the calls: for a dry run of what ranks do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace droptest::comm {

/// A call of one rank. An exchange is written as a send or a receive for each of its messages.
struct DryCall {
  Operation operation = Operation::kBarrier;
  bool is_started = false;  ///< whether a start_ call made it
  ReduceOp op = ReduceOp::kSum;
  ElementType type = ElementType::kFloat32;
  std::uint64_t elems = 0;                      ///< elements of the whole message; all_to_all: of the rank's input
  std::vector<std::uint64_t> counts{};          ///< CallArguments::counts
  std::vector<std::uint64_t> receive_counts{};  ///< CallArguments::receive_counts
  int peer = -1;                                ///< root, destination or source: its rank in the group
  sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
  std::string name{};
  int layer = -1;
  Delivery delivery = Delivery::kByNetwork;
  int rank = 0;                                     ///< the calling rank's number in the group
  std::shared_ptr<const std::vector<int>> ranks{};  ///< world ranks of the group's members

  std::uint64_t bytes() const { return elems * element_bytes(type); }
};

/// Calls check their arguments, write themselves down and return; outputs stay as they are. The tensors may have
/// addresses without memory. Groups are made by subgroup(); split(), which needs the other ranks, throws a CheckError.
class DryCommunicator final : public Communicator {
 public:
  /// `calls` gets the calls of all groups of the rank in their order; it is borrowed.
  DryCommunicator(int world_size, int rank, std::vector<DryCall>& calls);

  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(ranks_->size()); }
  int world_rank(int rank) const override { return (*ranks_)[static_cast<std::size_t>(rank)]; }
  std::string_view backend() const override { return "dry"; }
  void run(const CallArguments& arguments) override;
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> subgroup(std::span<const int> ranks) override;
  void abort(std::string_view /*reason*/) noexcept override {}

 private:
  DryCommunicator(std::shared_ptr<const std::vector<int>> ranks, int rank, std::vector<DryCall>& calls)
      : ranks_(std::move(ranks)), rank_(rank), calls_(calls) {}
  void note(const CallArguments& arguments);
  DryCall call(Operation operation, const Message& message, ConstTensor data) const;

  std::shared_ptr<const std::vector<int>> ranks_;
  int rank_;
  std::vector<DryCall>& calls_;
};

}  // namespace droptest::comm
