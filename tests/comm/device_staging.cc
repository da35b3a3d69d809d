// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/device_staging.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

#include "comm/device/device_buffer.h"

namespace droptest::comm {

/// The ranges of one call on the device: one memory where they overlap, else two.
class DeviceStaging::Staged {
 public:
  Staged(ConstTensor input, Tensor output, Stream& stream) : host_input_(input), host_output_(output), stream_(stream) {
    const std::byte* const in = input.bytes.data();
    const std::byte* const out = output.bytes.data();
    const bool overlap = !input.bytes.empty() && !output.bytes.empty() &&
                         std::less<>()(in, out + output.bytes.size()) && std::less<>()(out, in + input.bytes.size());
    if (overlap) {
      const std::byte* const begin = std::min(in, out, std::less<>());
      const std::byte* const end = std::max(in + input.bytes.size(), out + output.bytes.size(), std::less<>());
      memory_.push_back(copied({begin, static_cast<std::size_t>(end - begin)}));
      input_ = memory_[0].data() + (in - begin);
      output_ = memory_[0].data() + (out - begin);
      return;
    }
    memory_.push_back(copied(input.bytes));
    memory_.push_back(copied(output.bytes));
    input_ = memory_[0].data();
    output_ = memory_[1].data();
  }

  ConstTensor input() const { return {host_input_.type, {input_, host_input_.bytes.size()}, &stream_}; }
  Tensor output() const { return {host_output_.type, {output_, host_output_.bytes.size()}, &stream_}; }

  void finish() {
    std::vector<std::byte> input_now(host_input_.bytes.size());
    const std::vector<std::byte> input_before(host_input_.bytes.begin(), host_input_.bytes.end());
    copy_to_host(input_, std::span(input_now), stream_);
    copy_to_host(output_, host_output_.bytes, stream_);
    stream_.synchronize();
    for (std::size_t i = 0; i < input_now.size(); ++i) {
      const std::byte* const place = input_ + i;
      const bool is_output = !std::less<>()(place, static_cast<const std::byte*>(output_)) &&
                             std::less<>()(place, static_cast<const std::byte*>(output_) + host_output_.bytes.size());
      if (!is_output && input_now[i] != input_before[i]) throw std::runtime_error("an input on the device was written");
    }
  }

 private:
  DeviceMemory copied(std::span<const std::byte> bytes) {
    DeviceMemory memory(bytes.size(), "a test's tensor");
    copy_to_device(bytes, memory.data(), stream_);
    return memory;
  }

  const ConstTensor host_input_;
  const Tensor host_output_;
  Stream& stream_;
  std::vector<DeviceMemory> memory_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
};

void DeviceStaging::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  Staged staged(input, output, stream_);
  inner_.all_reduce(staged.input(), staged.output(), op, message);
  staged.finish();
}

void DeviceStaging::reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                                   const Message& message) {
  Staged staged(input, output, stream_);
  inner_.reduce_scatter(staged.input(), staged.output(), counts, op, message);
  staged.finish();
}

void DeviceStaging::all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                               const Message& message) {
  Staged staged(input, output, stream_);
  inner_.all_gather(staged.input(), staged.output(), counts, message);
  staged.finish();
}

void DeviceStaging::all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                               std::span<const std::uint64_t> receive_counts, const Message& message) {
  Staged staged(input, output, stream_);
  inner_.all_to_all(staged.input(), send_counts, staged.output(), receive_counts, message);
  staged.finish();
}

void DeviceStaging::broadcast(Tensor data, int root, const Message& message) {
  Staged staged(data, data, stream_);
  inner_.broadcast(staged.output(), root, message);
  staged.finish();
}

// Not waited for: the message may be taken only when this rank receives one.
void DeviceStaging::send(ConstTensor data, int destination, const Message& message) {
  DeviceMemory memory(data.bytes.size(), "a test's message");
  copy_to_device(data.bytes, memory.data(), stream_);
  inner_.send(ConstTensor(data.type, {memory.data(), data.bytes.size()}, &stream_), destination, message);
  stream_.synchronize();  // the memory goes
}

void DeviceStaging::recv(Tensor data, int source, const Message& message) {
  Staged staged(data, data, stream_);
  inner_.recv(staged.output(), source, message);
  staged.finish();
}

std::unique_ptr<Communicator> DeviceStaging::split(int color, int key) {
  std::unique_ptr<Communicator> part = inner_.split(color, key);
  if (part == nullptr) return nullptr;
  return std::make_unique<DeviceStaging>(std::move(part), stream_);
}

}  // namespace droptest::comm
