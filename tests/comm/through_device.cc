// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/through_device.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

#include "comm/call.h"

namespace droptest::comm {

void ThroughDevice::run(const CallArguments& arguments) {
  switch (arguments.operation) {
    case Operation::kAllReduceWith:
    case Operation::kReduceScatterWith:
      return run_as_other_calls(arguments);
    case Operation::kBarrier:
      return inner_.run(arguments);
    case Operation::kExchange:
      return exchange_now(arguments.sends, arguments.receives);
    case Operation::kSend:
      return send_now(arguments);
    case Operation::kRecv:
      return recv_now(arguments);
    default:
      return carry(arguments);
  }
}

void ThroughDevice::carry(const CallArguments& arguments) {
  const ConstTensor input = arguments.input;
  const Tensor output = arguments.output;
  const std::less<> before;
  const std::byte* in = input.bytes.data();
  const std::byte* out = output.bytes.data();
  const bool apart = input.bytes.empty() || output.bytes.empty() || !before(in, out + output.bytes.size()) ||
                     !before(out, in + input.bytes.size());
  const std::byte* first = apart ? in : std::min(in, out, before);
  const std::size_t input_at = static_cast<std::size_t>(in - first);
  const std::size_t output_at = apart ? (input.bytes.size() + 255) / 256 * 256 : static_cast<std::size_t>(out - first);
  DeviceBuffer<std::byte> buffer(std::max(input_at + input.bytes.size(), output_at + output.bytes.size()),
                                 "tensors of a test");
  std::byte* data = buffer.elems().data();
  // The output is copied first; overlapping parts have the same bytes in both.
  copy_to_device(std::span<const std::byte>(output.bytes), data + output_at, stream_);
  copy_to_device(input.bytes, data + input_at, stream_);
  CallArguments there = arguments;
  there.input = ConstTensor(input.type, {data + input_at, input.bytes.size()}, &stream_);
  there.output = Tensor(output.type, {data + output_at, output.bytes.size()}, &stream_);
  try {
    inner_.run(there);
  } catch (...) {
    stream_.synchronize();  // the copies above need the buffer
    throw;
  }
  std::vector<std::byte> input_now(input.bytes.size());
  copy_to_host(data + input_at, std::span(input_now), stream_);
  stream_.synchronize();
  for (std::size_t i = 0; i < input_now.size(); ++i) {
    const bool is_output = input_at + i >= output_at && input_at + i < output_at + output.bytes.size();
    if (!is_output && input_now[i] != input.bytes[i]) throw std::runtime_error("an input on the device was written");
  }
  copy_to_host(data + output_at, output.bytes, stream_);
  stream_.synchronize();
  // When all ranks have reached this place, no rank reads this rank's input any more.
  inner_.barrier({sim::TrafficClass::kControl, "end of a call through the device"});
}

void ThroughDevice::send_now(const CallArguments& arguments) {
  const ConstTensor data = arguments.input;
  DeviceBuffer<std::byte> buffer(data.bytes.size(), "tensors of a test");
  copy_to_device(data.bytes, buffer.elems().data(), stream_);
  CallArguments there = arguments;
  there.input = ConstTensor(data.type, {buffer.elems().data(), data.bytes.size()}, &stream_);
  inner_.run(there);
  stream_.synchronize();
}

void ThroughDevice::recv_now(const CallArguments& arguments) {
  const Tensor data = arguments.output;
  DeviceBuffer<std::byte> buffer(data.bytes.size(), "tensors of a test");
  copy_to_device(std::span<const std::byte>(data.bytes), buffer.elems().data(), stream_);
  CallArguments there = arguments;
  there.output = Tensor(data.type, {buffer.elems().data(), data.bytes.size()}, &stream_);
  inner_.run(there);
  copy_to_host(buffer.elems().data(), data.bytes, stream_);
  stream_.synchronize();
}

void ThroughDevice::exchange_now(std::span<const Send> sends, std::span<const Receive> receives) {
  std::vector<DeviceBuffer<std::byte>> buffers;
  const auto on_device = [&](ConstTensor data) {
    buffers.emplace_back(data.bytes.size(), "tensors of a test");
    copy_to_device(data.bytes, buffers.back().elems().data(), stream_);
    return Tensor(data.type, {buffers.back().elems().data(), data.bytes.size()}, &stream_);
  };
  std::vector<Send> sends_there(sends.begin(), sends.end());
  std::vector<Receive> receives_there(receives.begin(), receives.end());
  for (Send& send : sends_there) send.data = on_device(send.data);
  for (Receive& receive : receives_there) receive.data = on_device(receive.data);
  inner_.exchange(sends_there, receives_there);
  for (std::size_t i = 0; i < receives.size(); ++i) {
    copy_to_host(receives_there[i].data.bytes.data(), receives[i].data.bytes, stream_);
  }
  stream_.synchronize();
}

std::unique_ptr<WorkInFlight> ThroughDevice::begin(const CallArguments& arguments) {
  class Started final : public WorkInFlight {
   public:
    Started(std::unique_ptr<WorkInFlight> inner, Tensor there, Tensor here, Stream& stream)
        : inner_(std::move(inner)), there_(there), here_(here), stream_(stream) {}
    void finish() override {
      if (inner_ != nullptr) inner_->finish();
      copy_to_host(there_.bytes.data(), here_.bytes, stream_);
      stream_.synchronize();  // also for calls without an output, because peers read the inputs
    }
    bool finished() override { return inner_ == nullptr || inner_->finished(); }

   private:
    std::unique_ptr<WorkInFlight> inner_;
    Tensor there_;
    Tensor here_;
    Stream& stream_;
  };
  const auto on_device = [&](ConstTensor data) {
    of_works_.emplace_back(data.bytes.size(), "tensors of a test");
    std::byte* const bytes = of_works_.back().elems().data();
    copy_to_device(data.bytes, bytes, stream_);
    return Tensor(data.type, {bytes, data.bytes.size()}, &stream_);
  };
  const bool sends = arguments.operation == Operation::kSend;
  const bool in_place = !sends && arguments.input.bytes.data() == arguments.output.bytes.data();
  CallArguments there = arguments;
  if (!sends) there.output = on_device(arguments.output);
  if (arguments.operation != Operation::kRecv)
    there.input = in_place ? ConstTensor(there.output) : ConstTensor(on_device(arguments.input));
  stream_.synchronize();
  return std::make_unique<Started>(inner_.begin(there), there.output, arguments.output, stream_);
}

std::unique_ptr<Communicator> ThroughDevice::split(int color, int key) {
  std::unique_ptr<Communicator> part = inner_.split(color, key);
  if (part == nullptr) return nullptr;
  return std::unique_ptr<Communicator>(new ThroughDevice(std::move(part), stream_.device()));
}

}  // namespace droptest::comm
