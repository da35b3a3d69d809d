// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/transformed_path.h"

#include <array>
#include <utility>
#include <vector>

namespace droptest::comm {

TransformedPath::TransformedPath(std::unique_ptr<Path> path, const PathContext& context, std::uint64_t seed)
    : path_(std::move(path)), context_(context), messages_(context.messages()), transform_(context.network, seed) {}

void TransformedPath::plan(const CallArguments& call, CallFates& fates) {
  transform_.check(call.op, call.output.type, call.message);
  path_->plan(call, fates);
}

void TransformedPath::run(const CallArguments& call, Communicator& inner, Scratch& scratch) {
  // The parts of the input and of the output, by number of elements.
  const std::array<std::uint64_t, 1> input = {call.input.count_elems()};
  const std::array<std::uint64_t, 1> output = {call.output.count_elems()};
  std::vector<std::uint64_t> all_reduced;
  std::span<const std::uint64_t> in = input;
  std::span<const std::uint64_t> out = output;
  switch (call.operation) {
    case Operation::kAllReduce:
      all_reduced = messages_.all_reduce_parts(call.input.count_elems());
      in = out = all_reduced;
      break;
    case Operation::kReduceScatter:
      in = call.counts;
      break;
    case Operation::kAllGather:
      out = call.counts;
      break;
    case Operation::kAllToAll:
      in = call.counts;
      out = call.receive_counts;
      break;
    default:
      break;
  }
  CallArguments transformed = call;
  if (call.operation == Operation::kBroadcast) {
    transform_.forward(call.output, out);
  } else {
    transformed.input = transform_.transformed(call.input, in, scratch);
    const bool gathers = call.operation == Operation::kAllGather || call.operation == Operation::kAllToAll;
    if (gathers && context_.network.gather.rule().keeps_own()) transform_.forward(call.output, out);
  }
  path_->run(transformed, inner, scratch);
  transform_.inverse(call.output, out);
  if (call.message.lost != nullptr) transform_.inverse(*call.message.lost, call.output.type, out);
}

std::unique_ptr<Path> with_transforms(std::unique_ptr<Path> path, const PathContext& context, std::uint64_t seed) {
  if (MessageTransform(context.network, seed).is_identity()) return path;
  return std::make_unique<TransformedPath>(std::move(path), context, seed);
}

}  // namespace droptest::comm
