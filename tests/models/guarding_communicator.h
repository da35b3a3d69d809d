// SPDX-License-Identifier: Apache-2.0
// A communicator that detects uses of a buffer while a started message still needs it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/call.h"
#include "tests/comm/observed_communicator.h"

namespace droptest::models {

/// Checks started messages in host memory. A sent buffer must be equal at the start and at the wait. A buffer of a
/// receive has bytes of 0xFF (a NaN of any float type) from the start to the wait, and no write may change them. So a
/// rank that reads or writes a buffer too early fails with any backend. Other calls are forwarded.
class GuardingCommunicator final : public comm::ObservedCommunicator {
 public:
  explicit GuardingCommunicator(comm::Communicator& inner)
      : ObservedCommunicator(inner, [](const comm::Message&, std::size_t) {}), guarded_(inner) {}

  /// The number of messages with a buffer that was written between start and wait.
  std::vector<std::string> violations;

  std::unique_ptr<comm::WorkInFlight> begin(const comm::CallArguments& arguments) override {
    if (!comm::is_message(arguments.operation)) return guarded_.begin(arguments);
    return std::make_unique<Guarded>(*this, arguments);
  }

 private:
  class Guarded final : public comm::WorkInFlight {
   public:
    Guarded(GuardingCommunicator& owner, const comm::CallArguments& arguments)
        : owner_(owner), name_(arguments.message.name), buffer_(arguments.output) {
      comm::CallArguments own = arguments;
      if (arguments.operation == comm::Operation::kSend) {
        sent_ = arguments.input;
        message_.assign(sent_.bytes.begin(), sent_.bytes.end());
        own.input.bytes = message_;
      } else {
        message_.resize(buffer_.bytes.size());
        std::ranges::fill(buffer_.bytes, kGuard);
        own.output.bytes = message_;
      }
      inner_ = owner.guarded_.begin(own);
    }
    void finish() override {
      if (inner_ != nullptr) inner_->finish();
      const bool unchanged = std::ranges::all_of(buffer_.bytes, [](std::byte b) { return b == kGuard; }) &&
                             (sent_.bytes.empty() || std::ranges::equal(sent_.bytes, message_));
      if (!unchanged) owner_.violations.push_back(name_);
      if (!buffer_.bytes.empty()) std::ranges::copy(message_, buffer_.bytes.begin());
    }
    bool finished() override { return inner_ == nullptr || inner_->finished(); }

   private:
    static constexpr std::byte kGuard{0xFF};

    GuardingCommunicator& owner_;
    std::string name_;
    comm::ConstTensor sent_;  ///< buffer of a send
    comm::Tensor buffer_;     ///< buffer of a receive
    std::vector<std::byte> message_;
    std::unique_ptr<comm::WorkInFlight> inner_;
  };

  comm::Communicator& guarded_;
};

}  // namespace droptest::models
