// SPDX-License-Identifier: Apache-2.0
// A communicator that records the calls of its rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/communicator.h"

namespace droptest::comm {

/// Forwards everything. `calls` has a line for each collective: operation, name, layer, class, elements and reduction.
class RecordingCommunicator final : public Communicator {
 public:
  explicit RecordingCommunicator(Communicator& inner) : inner_(inner) {}

  std::vector<std::string> calls;
  std::atomic<std::size_t> calls_so_far = 0;  ///< other threads may read it
  std::vector<ElementType> types;             ///< element type of each call; float for a barrier
  std::vector<std::optional<std::uint64_t>> ordinals;

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  std::string_view backend() const override { return inner_.backend(); }
  void run(const CallArguments& arguments) override {
    using enum Operation;
    switch (arguments.operation) {
      case kAllReduceWith:
      case kReduceScatterWith:
        return run_as_other_calls(arguments);
      case kExchange:
        for (const Send& send : arguments.sends) record("exchange", send.message, send.data);
        break;
      case kAllReduce:
        record(arguments.op == ReduceOp::kSum ? "sum" : "max", arguments.message, arguments.input);
        break;
      default: {
        const bool by_output = arguments.operation == kAllGather || arguments.operation == kRecv;
        record(operation_name(arguments.operation), arguments.message,
               by_output ? ConstTensor(arguments.output) : arguments.input);
      }
    }
    inner_.run(arguments);
  }
  std::unique_ptr<Communicator> split(int color, int key) override { return inner_.split(color, key); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  void record(std::string_view operation, const Message& message, ConstTensor data) {
    ++calls_so_far;
    types.push_back(data.type);
    ordinals.push_back(message.ordinal);
    calls.push_back(std::string(operation) + " " + std::string(message.name) + " layer " +
                    std::to_string(message.layer) + " " + std::string(sim::traffic_class_name(message.traffic_class)) +
                    " " + std::to_string(data.count_elems()));
  }

  Communicator& inner_;
};

}  // namespace droptest::comm
