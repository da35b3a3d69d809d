// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/transformed_path.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "comm/device/device_buffer.h"
#include "comm/lossy/packet_runs.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

// The tensors of one rank after the other; f(part) for each that is not empty. f works in host memory: what a device
// has goes there and back, which waits for the stream.
template <class F>
void for_each_part(Tensor data, std::span<const std::uint64_t> parts, const F& f) {
  std::vector<std::byte> host;
  Tensor in_place = data;
  if (data.stream != nullptr) {
    host.resize(data.bytes.size());
    copy_to_host(data.bytes.data(), host, *data.stream);
    data.stream->synchronize();
    in_place = {data.type, host};
  }
  std::uint64_t begin = 0;
  for (const std::uint64_t count : parts) {
    if (count > 0) f(slice(in_place, {begin, begin + count}));
    begin += count;
  }
  if (data.stream == nullptr) return;
  copy_to_device(std::span<const std::byte>(host), data.bytes.data(), *data.stream);
  data.stream->synchronize();  // the host's copy goes
}

// In place on floats of a width that the transform knows; bfloat16 is widened, and rounded afterwards.
template <class F>
void transform(Tensor part, const F& f) {
  if (part.type == ElementType::kFloat32) return f(part.as<float>());
  if (part.type == ElementType::kFloat64) return f(part.as<double>());
  DROPTEST_CHECK(part.type == ElementType::kBfloat16, "a transform of integers");
  const std::span<Bf16> rounded = part.as<Bf16>();
  std::vector<float> values(rounded.size());
  std::ranges::transform(rounded, values.begin(), to_float);
  f(std::span<float>(values));
  std::ranges::transform(values, rounded.begin(), to_bf16);
}

}  // namespace

TransformedPath::TransformedPath(std::unique_ptr<Path> path, const PathContext& context, std::uint64_t seed)
    : path_(std::move(path)), context_(context) {
  if (context.network.recovery.hadamard_block_elems == 0) return;
  hadamard_.emplace(seed, 0, context.network.recovery.hadamard_block_elems);
}

void TransformedPath::check(ReduceOp op, ElementType type, const Message& message) const {
  if (!hadamard_.has_value() || (op == ReduceOp::kSum && type != ElementType::kUint64)) return;
  throw ConfigError("message \"" + std::string(message.name) + "\" of class " +
                    std::string(sim::traffic_class_name(message.traffic_class)) + ": recovery hadamard sends sums of " +
                    "elements in place of elements, but " +
                    (op == ReduceOp::kMax ? "the maximum of sums is not the sum of maxima"
                                          : "the elements are integers, which it does not give back") +
                    "; want a sum of floats, or the class control");
}

void TransformedPath::interleave(Tensor part, Turn turn) {
  const std::size_t size = element_bytes(part.type);
  const sim::Interleaver interleaver(context_.network.recovery.interleave_packets,
                                     context_.network.payload_bytes / size);
  order_.assign(part.bytes.begin(), part.bytes.end());
  if (turn == Turn::kIn) {
    interleaver.spread(order_, part.bytes, size);
  } else {
    interleaver.gather(order_, part.bytes, size);
  }
}

void TransformedPath::forward(Tensor data, Counts parts) {
  for_each_part(data, parts, [this](Tensor part) {
    if (hadamard_.has_value()) {
      transform(part, [this](auto values) { hadamard_->forward(values); });
    }
    if (context_.network.recovery.interleave_packets > 1) interleave(part, Turn::kIn);
  });
}

void TransformedPath::inverse(Tensor data, Counts parts) {
  for_each_part(data, parts, [this](Tensor part) {
    if (context_.network.recovery.interleave_packets > 1) interleave(part, Turn::kOut);
    if (hadamard_.has_value()) {
      transform(part, [this](auto values) { hadamard_->inverse(values); });
    }
  });
}

// The input stays as it is: a caller's input is never written.
ConstTensor TransformedPath::transformed(ConstTensor input, Counts parts) {
  const Tensor copied = context_.scratch.take(Scratch::Slot::kTransformed, input, input.count_elems());
  copy(input, copied);
  forward(copied, parts);
  return copied;
}

void TransformedPath::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  check(op, input.type, message);
  const std::vector<std::uint64_t> parts = even_counts(input.count_elems(), context_.inner.world_size());
  path_->all_reduce(transformed(input, parts), output, op, message);
  inverse(output, parts);
}

void TransformedPath::reduce_scatter(ConstTensor input, Tensor output, Counts counts, ReduceOp op,
                                     const Message& message) {
  check(op, input.type, message);
  path_->reduce_scatter(transformed(input, counts), output, counts, op, message);
  const std::array<std::uint64_t, 1> mine = {output.count_elems()};
  inverse(output, mine);
}

void TransformedPath::all_gather(ConstTensor input, Tensor output, Counts counts, const Message& message) {
  check(ReduceOp::kSum, input.type, message);
  const std::array<std::uint64_t, 1> mine = {input.count_elems()};
  const ConstTensor sent = transformed(input, mine);
  if (fill_keeps_output()) forward(output, counts);
  path_->all_gather(sent, output, counts, message);
  inverse(output, counts);
}

void TransformedPath::all_to_all(ConstTensor input, Counts send_counts, Tensor output, Counts receive_counts,
                                 const Message& message) {
  check(ReduceOp::kSum, input.type, message);
  const ConstTensor sent = transformed(input, send_counts);
  if (fill_keeps_output()) forward(output, receive_counts);
  path_->all_to_all(sent, send_counts, output, receive_counts, message);
  inverse(output, receive_counts);
}

void TransformedPath::broadcast(Tensor data, int root, const Message& message) {
  check(ReduceOp::kSum, data.type, message);
  const std::array<std::uint64_t, 1> whole = {data.count_elems()};
  forward(data, whole);
  path_->broadcast(data, root, message);
  inverse(data, whole);
}

void TransformedPath::send(ConstTensor data, int destination, const Message& message) {
  check(ReduceOp::kSum, data.type, message);
  const std::array<std::uint64_t, 1> whole = {data.count_elems()};
  path_->send(transformed(data, whole), destination, message);
}

void TransformedPath::recv(Tensor data, int source, const Message& message) {
  check(ReduceOp::kSum, data.type, message);
  const std::array<std::uint64_t, 1> whole = {data.count_elems()};
  if (fill_keeps_output()) forward(data, whole);
  path_->recv(data, source, message);
  inverse(data, whole);
}

std::unique_ptr<Path> with_transforms(std::unique_ptr<Path> path, const PathContext& context, std::uint64_t seed) {
  const ClassRecovery& recovery = context.network.recovery;
  if (recovery.hadamard_block_elems == 0 && recovery.interleave_packets <= 1) return path;
  return std::make_unique<TransformedPath>(std::move(path), context, seed);
}

}  // namespace droptest::comm
