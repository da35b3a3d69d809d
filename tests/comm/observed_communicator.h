// SPDX-License-Identifier: Apache-2.0
// A communicator that shows a test the messages that go through it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "comm/communicator.h"

namespace droptest::comm {

/// Forwards every call to `inner`, which is borrowed, and first shows the rank's message and input size. Subgroups are
/// not observed.
class ObservedCommunicator : public Communicator {
 public:
  using Observe = std::function<void(const Message& message, std::size_t input_bytes)>;
  ObservedCommunicator(Communicator& inner, Observe observe) : inner_(inner), observe_(std::move(observe)) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  std::string_view backend() const override { return inner_.backend(); }
  void begin_step(std::uint64_t step) override { inner_.begin_step(step); }
  PartReductions part_reductions() const override { return inner_.part_reductions(); }
  void run(const CallArguments& arguments) override {
    if (arguments.operation == Operation::kExchange) {
      for (const Send& send : arguments.sends) observe_(send.message, send.data.bytes.size());
      for (const Receive& receive : arguments.receives) observe_(receive.message, 0);
    } else {
      observe_(arguments.message, arguments.input.bytes.size());
    }
    inner_.run(arguments);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    observe_({}, 0);
    return inner_.split(color, key);
  }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  Communicator& inner_;
  Observe observe_;
};

}  // namespace droptest::comm
