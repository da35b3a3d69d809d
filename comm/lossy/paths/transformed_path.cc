// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/transformed_path.h"

#include <array>
#include <utility>
#include <vector>

namespace droptest::comm {

TransformedPath::TransformedPath(std::unique_ptr<Path> path, const PathContext& context, std::uint64_t seed)
    : path_(std::move(path)), context_(context), transform_(context.network, seed) {}

std::vector<std::uint64_t> TransformedPath::all_reduce_parts(std::uint64_t count_elems) {
  return path_->all_reduce_parts(count_elems);
}

void TransformedPath::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  transform_.check(op, input.type, message);
  const std::vector<std::uint64_t> parts = path_->all_reduce_parts(input.count_elems());
  path_->all_reduce(transform_.transformed(input, parts, context_.scratch), output, op, message);
  transform_.inverse(output, parts);
}

void TransformedPath::reduce_scatter(ConstTensor input, Tensor output, Counts counts, ReduceOp op,
                                     const Message& message) {
  transform_.check(op, input.type, message);
  path_->reduce_scatter(transform_.transformed(input, counts, context_.scratch), output, counts, op, message);
  const std::array<std::uint64_t, 1> mine = {output.count_elems()};
  transform_.inverse(output, mine);
}

void TransformedPath::all_gather(ConstTensor input, Tensor output, Counts counts, const Message& message) {
  transform_.check(ReduceOp::kSum, input.type, message);
  const std::array<std::uint64_t, 1> mine = {input.count_elems()};
  const ConstTensor sent = transform_.transformed(input, mine, context_.scratch);
  if (fill_keeps_output()) transform_.forward(output, counts);
  path_->all_gather(sent, output, counts, message);
  transform_.inverse(output, counts);
}

void TransformedPath::all_to_all(ConstTensor input, Counts send_counts, Tensor output, Counts receive_counts,
                                 const Message& message) {
  transform_.check(ReduceOp::kSum, input.type, message);
  const ConstTensor sent = transform_.transformed(input, send_counts, context_.scratch);
  if (fill_keeps_output()) transform_.forward(output, receive_counts);
  path_->all_to_all(sent, send_counts, output, receive_counts, message);
  transform_.inverse(output, receive_counts);
}

void TransformedPath::broadcast(Tensor data, int root, const Message& message) {
  transform_.check(ReduceOp::kSum, data.type, message);
  const std::array<std::uint64_t, 1> whole = {data.count_elems()};
  transform_.forward(data, whole);
  path_->broadcast(data, root, message);
  transform_.inverse(data, whole);
}

std::unique_ptr<Path> with_transforms(std::unique_ptr<Path> path, const PathContext& context, std::uint64_t seed) {
  if (MessageTransform(context.network, seed).is_identity()) return path;
  return std::make_unique<TransformedPath>(std::move(path), context, seed);
}

}  // namespace droptest::comm
