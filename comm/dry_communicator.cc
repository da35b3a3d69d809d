// SPDX-License-Identifier: Apache-2.0
#include "comm/dry_communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/call.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

std::shared_ptr<const std::vector<int>> all_ranks(int world_size) {
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<const std::vector<int>>(std::move(ranks));
}

}  // namespace

DryCommunicator::DryCommunicator(int world_size, int rank, std::vector<DryCall>& calls)
    : DryCommunicator(all_ranks(world_size), rank, calls) {
  DROPTEST_CHECK(rank >= 0 && rank < world_size, "a dry run of a rank that is not of its world");
}

void DryCommunicator::run(const CallArguments& arguments) { note(arguments); }

std::unique_ptr<WorkInFlight> DryCommunicator::begin(const CallArguments& arguments) {
  note(arguments);
  calls_.back().is_started = true;
  return nullptr;
}

std::unique_ptr<Communicator> DryCommunicator::split(int /*color*/, int /*key*/) {
  throw CheckError("a split in a dry run, which does not know the other ranks' colors; want subgroup()");
}

std::unique_ptr<Communicator> DryCommunicator::subgroup(std::span<const int> ranks) {
  const auto own = std::ranges::find(ranks, rank_);
  if (own == ranks.end()) return nullptr;
  std::vector<int> of_world;
  for (const int rank : ranks) {
    DROPTEST_CHECK(rank >= 0 && rank < world_size(), "rank " + std::to_string(rank) + " of a group that lacks it");
    of_world.push_back(world_rank(rank));
  }
  return std::unique_ptr<Communicator>(new DryCommunicator(
      std::make_shared<const std::vector<int>>(std::move(of_world)), static_cast<int>(own - ranks.begin()), calls_));
}

DryCall DryCommunicator::call(Operation operation, const Message& message, ConstTensor data) const {
  DryCall call;
  call.operation = operation;
  call.type = data.type;
  call.elems = data.count_elems();
  call.traffic_class = message.traffic_class;
  call.name = message.name;
  call.layer = message.layer;
  call.delivery = message.delivery;
  call.rank = rank_;
  call.ranks = ranks_;
  return call;
}

void DryCommunicator::note(const CallArguments& arguments) {
  if (arguments.operation == Operation::kExchange) {
    checked_exchange(*this, arguments.sends, arguments.receives, 0);
    for (const Send& send : arguments.sends) {
      calls_.push_back(call(Operation::kSend, send.message, send.data));
      calls_.back().peer = send.destination;
    }
    for (const Receive& receive : arguments.receives) {
      calls_.push_back(call(Operation::kRecv, receive.message, receive.data));
      calls_.back().peer = receive.source;
    }
    return;
  }
  checked_call(*this, arguments, 0);
  const bool by_output = arguments.operation == Operation::kAllGather || arguments.operation == Operation::kRecv;
  DryCall noted = call(arguments.operation, arguments.message,
                       by_output ? ConstTensor(arguments.output) : ConstTensor(arguments.input));
  noted.op = arguments.op;
  noted.counts.assign(arguments.counts.begin(), arguments.counts.end());
  noted.receive_counts.assign(arguments.receive_counts.begin(), arguments.receive_counts.end());
  noted.peer = arguments.peer;
  calls_.push_back(std::move(noted));
}

}  // namespace droptest::comm
