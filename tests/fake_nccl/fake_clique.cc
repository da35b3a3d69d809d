// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_nccl/fake_clique.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "comm/rank_order_reduction.h"

namespace droptest::fake_nccl {
namespace {

comm::ElementType element_type(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return comm::ElementType::kFloat32;
    case ncclFloat64:
      return comm::ElementType::kFloat64;
    case ncclUint64:
      return comm::ElementType::kUint64;
    case ncclBfloat16:
      return comm::ElementType::kBfloat16;
    case ncclFloat16:
      return comm::ElementType::kFloat16;
    case ncclInt32:
      return comm::ElementType::kInt32;
    case ncclInt64:
      return comm::ElementType::kInt64;
    case ncclUint8:
      return comm::ElementType::kUint8;
    default:
      throw std::logic_error("fake NCCL: this type is not known");
  }
}

// In rank order, which NCCL does not promise: so that tests can compare bits with the host's.
std::vector<std::byte> reduced(const std::vector<const std::byte*>& inputs, const Operation& operation,
                               std::size_t count) {
  std::vector<std::byte> result(count * bytes_of(operation.type));
  std::byte* const outputs[] = {result.data()};
  const comm::ReduceOp op = operation.op == ncclSum   ? comm::ReduceOp::kSum
                            : operation.op == ncclAvg ? comm::ReduceOp::kMean
                                                      : comm::ReduceOp::kMax;
  comm::reduce_in_rank_order(op, element_type(operation.type), inputs, outputs, count);
  return result;
}

bool agree(const Operation& a, const Operation& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op && a.peer == b.peer;
}

}  // namespace

std::string text_of(const Operation& operation) {
  constexpr std::array<const char*, 7> kNames = {"AllReduce", "ReduceScatter", "Reduce", "AllGather",
                                                 "Broadcast", "Send",          "Recv"};
  std::string text = std::string(kNames[static_cast<std::size_t>(operation.kind)]) + "(";
  const bool reduces = operation.kind <= Kind::kReduce;
  if (reduces) text += operation.op == ncclSum ? "sum, " : "max, ";
  text += std::to_string(operation.count);
  if (operation.kind == Kind::kSend) text += " to " + std::to_string(operation.peer);
  if (operation.kind == Kind::kRecv) text += " from " + std::to_string(operation.peer);
  if (operation.kind == Kind::kReduce || operation.kind == Kind::kBroadcast) {
    text += ", root " + std::to_string(operation.peer);
  }
  return text + ")";
}

std::size_t bytes_of(ncclDataType_t type) { return comm::element_bytes(element_type(type)); }

void Clique::run_collective(int rank, const Operation& operation, const std::atomic<bool>& aborted) {
  std::unique_lock lock(mutex_);
  Meeting& meeting = meetings_[collectives_[static_cast<std::size_t>(rank)]++];
  meeting.arrived[rank] = operation;
  const auto same = [&](const auto& other) { return agree(other.second, operation); };
  const bool complete_now = static_cast<int>(meeting.arrived.size()) == ranks_ &&
                            std::all_of(meeting.arrived.begin(), meeting.arrived.end(), same);
  if (complete_now) {
    complete(meeting);
    meeting.done = true;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return meeting.done || aborted; });
  if (!meeting.done) meeting.arrived.erase(rank);  // whose memory may go
}

void Clique::complete(const Meeting& meeting) const {
  const Operation& first = meeting.arrived.at(0);
  const std::size_t size = bytes_of(first.type);
  std::vector<const std::byte*> inputs;
  for (const auto& [rank, operation] : meeting.arrived)
    inputs.push_back(static_cast<const std::byte*>(operation.input));
  // All results before any output is written: outputs may be inputs.
  std::vector<std::vector<std::byte>> results;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::vector<std::byte>& result = results.emplace_back();
    switch (first.kind) {
      case Kind::kAllReduce:
        result = reduced(inputs, first, first.count);
        break;
      case Kind::kReduceScatter: {
        std::vector<const std::byte*> parts;
        for (const std::byte* input : inputs) parts.push_back(input + r * first.count * size);
        result = reduced(parts, first, first.count);
        break;
      }
      case Kind::kReduce:
        if (rank == first.peer) result = reduced(inputs, first, first.count);
        break;
      case Kind::kAllGather:
        for (const std::byte* input : inputs) result.insert(result.end(), input, input + first.count * size);
        break;
      case Kind::kBroadcast: {
        const std::byte* root = inputs[static_cast<std::size_t>(first.peer)];
        result.assign(root, root + first.count * size);
        break;
      }
      case Kind::kSend:
      case Kind::kRecv:
        throw std::logic_error("fake NCCL: a message is no collective");
    }
  }
  for (const auto& [rank, operation] : meeting.arrived) {
    const std::vector<std::byte>& result = results[static_cast<std::size_t>(rank)];
    if (!result.empty()) std::memcpy(operation.output, result.data(), result.size());
  }
}

void Clique::run_messages(int rank, const std::vector<Operation>& messages, const std::atomic<bool>& aborted) {
  std::unique_lock lock(mutex_);
  std::vector<std::shared_ptr<Message>> own;
  for (const Operation& operation : messages) {
    const bool sends = operation.kind == Kind::kSend;
    const std::pair<int, int> link =
        sends ? std::pair<int, int>(rank, operation.peer) : std::pair<int, int>(operation.peer, rank);
    own.push_back(std::make_shared<Message>(Message{operation}));
    (sends ? sends_ : receives_)[link].push_back(own.back());
    match(link.first, link.second);
  }
  changed_.wait(lock, [&] {
    return aborted || std::all_of(own.begin(), own.end(), [](const auto& message) { return message->done; });
  });
  const auto forget = [&own](std::map<std::pair<int, int>, Messages>& all) {
    for (auto& [link, messages_of_link] : all) {
      std::erase_if(messages_of_link, [&own](const auto& message) {
        return !message->done && std::find(own.begin(), own.end(), message) != own.end();
      });
    }
  };
  if (!aborted) return;
  forget(sends_);  // whose memory may go
  forget(receives_);
}

// Messages of a pair meet in order. Sizes that differ never end.
void Clique::match(int source, int destination) {
  Messages& sends = sends_[{source, destination}];
  Messages& receives = receives_[{source, destination}];
  while (!sends.empty() && !receives.empty()) {
    Message& send = *sends.front();
    Message& receive = *receives.front();
    if (send.operation.count != receive.operation.count || send.operation.type != receive.operation.type) return;
    std::memcpy(receive.operation.output, send.operation.input, send.operation.count * bytes_of(send.operation.type));
    send.done = receive.done = true;
    sends.pop_front();
    receives.pop_front();
    changed_.notify_all();
  }
}

void Clique::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace droptest::fake_nccl
