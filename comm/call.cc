// SPDX-License-Identifier: Apache-2.0
#include "comm/call.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "sim/error.h"

namespace droptest::comm {
namespace {

// FNV-1a: a digest that is the same in every process and needs no library.
class Digest {
 public:
  void add(std::uint64_t byte) { value_ = (value_ ^ byte) * 0x100000001b3ULL; }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.empty() || b.empty()) return false;
  const std::less<> before;
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

std::string_view reduce_op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMean:
      return "mean";
  }
  return "unknown reduction";
}

}  // namespace

std::string_view operation_name(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kSend:
      return "send";
    case Operation::kRecv:
      return "recv";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kSplit:
      return "split";
    case Operation::kAllReduceWith:
      return "all_reduce_with";
    case Operation::kReduceScatterWith:
      return "reduce_scatter_with";
    case Operation::kExchange:
      return "exchange";
  }
  return "unknown operation";
}

Call::Call(Operation op, ElementType element_type, std::uint64_t count, const Message& message, std::uint64_t at_step)
    : operation(op),
      type(element_type),
      traffic_class(message.traffic_class),
      layer(message.layer),
      step(at_step),
      count_elems(count),
      ordinal(message.ordinal) {
  Digest digest;
  for (const char c : message.name) digest.add(static_cast<unsigned char>(c));
  name_digest = digest.value();
  name_chars = static_cast<std::uint32_t>(std::min(message.name.size(), name_prefix.size()));
  std::copy_n(message.name.data(), name_chars, name_prefix.data());
}

Call other_end_of(Call receive) {
  if (receive.operation == Operation::kRecv) receive.operation = Operation::kSend;
  return receive;
}

std::uint64_t digest_of_counts(std::span<const std::uint64_t> counts) {
  Digest digest;
  for (const std::uint64_t count : counts) {
    for (int shift = 0; shift < 64; shift += 8) digest.add((count >> shift) & 0xff);
  }
  return digest.value();
}

bool calls_agree(const Call& a, const Call& b) {
  const bool counts_differ_by_rank = a.operation == Operation::kAllToAll;
  return a.operation == b.operation && a.reduce_op == b.reduce_op && a.type == b.type &&
         a.traffic_class == b.traffic_class && a.layer == b.layer && a.root == b.root &&
         (counts_differ_by_rank || a.count_elems == b.count_elems) && a.counts_digest == b.counts_digest &&
         a.name_digest == b.name_digest && a.ordinal == b.ordinal;
}

std::string describe(const Call& call) {
  std::string text(operation_name(call.operation));
  text += "(";
  const bool carries_data = call.operation != Operation::kBarrier && call.operation != Operation::kSplit;
  if (carries_data) {
    const bool reduces = call.operation == Operation::kAllReduce || call.operation == Operation::kReduceScatter;
    if (reduces) text += std::string(reduce_op_name(call.reduce_op)) + " of ";
    text += std::to_string(call.count_elems) + " " + std::string(element_type_name(call.type)) + ", ";
  }
  text += "\"" + std::string(call.name()) + "\"";
  if (call.layer >= 0) text += ", layer " + std::to_string(call.layer);
  if (call.ordinal) text += ", ordinal " + std::to_string(*call.ordinal);
  if (call.root >= 0) text += ", root " + std::to_string(call.root);
  if (call.counts_digest != 0) text += ", counts #" + std::to_string(call.counts_digest % 100000);
  text += ", " + std::string(sim::traffic_class_name(call.traffic_class)) + ")";
  return text;
}

std::string call_context(const Call& call) {
  std::string text = "(step " + std::to_string(call.step) + ", ";
  text += call.name_chars == 0 ? "unnamed" : std::string(call.name());
  if (call.layer >= 0) text += " of layer " + std::to_string(call.layer);
  return text + ", " + std::to_string(call.count_elems * element_bytes(call.type)) + " bytes)";
}

std::string rank_list(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

std::string describe_disagreement(std::span<const Call> calls, std::span<const int> world_ranks) {
  std::string text;
  std::vector<bool> told(calls.size(), false);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (told[i]) continue;
    std::vector<int> same;
    for (std::size_t j = i; j < calls.size(); ++j) {
      if (told[j] || !calls_agree(calls[i], calls[j])) continue;
      told[j] = true;
      same.push_back(world_ranks[j]);
    }
    text += (i == 0 ? "" : "; ") + rank_list(same) + ": " + describe(calls[i]);
  }
  return text;
}

std::string failure_text(const Failure& failure, const Call& call, int world_rank, int world_size) {
  const std::string here = std::string(operation_name(call.operation)) + ": rank " + std::to_string(world_rank) +
                           " of " + std::to_string(world_size) + ": ";
  if (failure.reporter == world_rank && !failure.reporter_at.empty()) return here + failure.cause;
  std::string text = here + failure.cause;
  if (!failure.reporter_at.empty()) {
    text += " [found by rank " + std::to_string(failure.reporter) + " in " + failure.reporter_at + "]";
  }
  return text + " while this rank was in " + std::string(operation_name(call.operation)) + " " + call_context(call);
}

void ArgumentCheck::fail(const std::string& detail) const {
  throw ConfigError(std::string(operation_name(call_.operation)) + ": rank " +
                    std::to_string(communicator_.world_rank(communicator_.rank())) + ": " + detail + " " +
                    call_context(call_));
}

void ArgumentCheck::reduction() const {
  if (call_.reduce_op != ReduceOp::kMean || !is_integer(call_.type)) return;
  fail("got a mean of " + std::string(element_type_name(call_.type)) +
       ", but a mean of integers is no integer; want a sum, or floats");
}

void ArgumentCheck::counts(std::span<const std::uint64_t> counts) const {
  if (counts.size() != static_cast<std::size_t>(communicator_.world_size())) {
    fail("got " + std::to_string(counts.size()) + " counts, want one for each of " +
         std::to_string(communicator_.world_size()) + " ranks");
  }
}

void ArgumentCheck::shape(ConstTensor tensor, std::uint64_t count, std::string_view what) const {
  if (tensor.type != call_.type) {
    fail(std::string(what) + " is " + std::string(element_type_name(tensor.type)) + ", want " +
         std::string(element_type_name(call_.type)));
  }
  if (tensor.bytes.size() != count * element_bytes(call_.type)) {
    fail(std::string(what) + " has " + std::to_string(tensor.bytes.size()) + " bytes, want " +
         std::to_string(count * element_bytes(call_.type)));
  }
}

void ArgumentCheck::on_host(ConstTensor tensor) const {
  if (tensor.stream == nullptr) return;
  fail("got a tensor in device memory, want host memory; the backends local and nccl take both");
}

void ArgumentCheck::same_or_apart(ConstTensor input, ConstTensor output) const {
  if (input.bytes.data() == output.bytes.data() || !overlap(input.bytes, output.bytes)) return;
  fail("input and output overlap in part; they must be the same range or not overlap");
}

void ArgumentCheck::own_part_or_apart(ConstTensor part, ConstTensor whole, std::uint64_t offset_elems) const {
  if (!overlap(part.bytes, whole.bytes)) return;
  if (part.bytes.data() == whole.bytes.data() + offset_elems * element_bytes(call_.type)) return;
  fail("input and output overlap, but not where this rank's own part is");
}

void ArgumentCheck::peer(int rank, std::string_view what) const {
  if (rank < 0 || rank >= communicator_.world_size()) {
    fail(std::string(what) + " " + std::to_string(rank) + ", want 0 to " +
         std::to_string(communicator_.world_size() - 1));
  }
}

KeptArguments::KeptArguments(const CallArguments& arguments)
    : counts_(arguments.counts.begin(), arguments.counts.end()),
      receive_counts_(arguments.receive_counts.begin(), arguments.receive_counts.end()),
      name_(arguments.message.name),
      arguments_(arguments) {
  DROPTEST_CHECK(arguments.sends.empty() && arguments.receives.empty(), "an exchange that outlives its arguments");
  arguments_.counts = counts_;
  arguments_.receive_counts = receive_counts_;
  arguments_.message.name = name_;
}

Call checked_call(const Communicator& communicator, const CallArguments& arguments, std::uint64_t step) {
  const Operation operation = arguments.operation;
  const ConstTensor input = arguments.input;
  const Tensor output = arguments.output;
  const std::span<const std::uint64_t> counts = arguments.counts;
  const int peer = arguments.peer;
  const auto sum_of = [](std::span<const std::uint64_t> parts) {
    return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
  };
  const bool by_output = operation == Operation::kAllGather || operation == Operation::kRecv;
  const ConstTensor whole = by_output ? ConstTensor(output) : input;
  Call call(operation, whole.type, whole.count_elems(), arguments.message, step);
  const ArgumentCheck check(communicator, call);
  const bool reduces_itself = operation == Operation::kAllReduceWith || operation == Operation::kReduceScatterWith;
  DROPTEST_CHECK(reduces_itself == (arguments.reduction != nullptr),
                 std::string(operation_name(operation)) + (reduces_itself ? " without" : " with") + " a reduction");
  const auto self = static_cast<std::size_t>(communicator.rank());
  if (arguments.message.ordinal && operation != Operation::kSend && operation != Operation::kRecv) {
    check.fail("got an ordinal, which only messages between two ranks have");
  }
  switch (operation) {
    case Operation::kAllReduce:
    case Operation::kAllReduceWith:
      call.reduce_op = arguments.op;
      check.reduction();
      check.shape(input, call.count_elems, "input");
      check.shape(output, call.count_elems, "output");
      check.same_or_apart(input, output);
      break;
    case Operation::kReduceScatter:
    case Operation::kReduceScatterWith:
      call.reduce_op = arguments.op;
      call.counts_digest = digest_of_counts(counts);
      check.reduction();
      check.counts(counts);
      check.shape(input, sum_of(counts), "input");
      check.shape(output, counts[self], "output");
      check.own_part_or_apart(output, input, sum_of(counts.first(self)));
      break;
    case Operation::kAllGather:
      call.counts_digest = digest_of_counts(counts);
      check.counts(counts);
      check.shape(input, counts[self], "input");
      check.shape(output, sum_of(counts), "output");
      check.own_part_or_apart(input, output, sum_of(counts.first(self)));
      break;
    case Operation::kAllToAll:
      check.counts(counts);
      check.counts(arguments.receive_counts);
      check.shape(input, sum_of(counts), "input");
      check.shape(output, sum_of(arguments.receive_counts), "output");
      check.same_or_apart(input, output);
      break;
    case Operation::kBroadcast:
      call.root = peer;
      check.peer(peer, "root");
      check.shape(input, call.count_elems, "data");
      DROPTEST_CHECK(input.bytes.data() == output.bytes.data() && input.bytes.size() == output.bytes.size(),
                     "a broadcast of one range into another");
      break;
    case Operation::kSend:
      check.peer(peer, "destination");
      check.shape(input, call.count_elems, "data");
      break;
    case Operation::kRecv:
      check.peer(peer, "source");
      check.shape(output, call.count_elems, "data");
      break;
    case Operation::kBarrier:
      break;
    case Operation::kSplit:
    case Operation::kExchange:
      DROPTEST_CHECK(false, std::string(operation_name(operation)) + " has other arguments");
  }
  return call;
}

namespace {

// One tensor of an exchange among the others.
struct ExchangedRange {
  ConstTensor tensor;
  const Call* call;
  bool is_received;
};

void check_apart(const Communicator& communicator, std::vector<ExchangedRange> ranges) {
  std::erase_if(ranges, [](const ExchangedRange& range) { return range.tensor.bytes.empty(); });
  const std::less<> before;
  const auto end_of = [](const ExchangedRange& range) { return range.tensor.bytes.data() + range.tensor.bytes.size(); };
  std::ranges::sort(ranges, before, [](const ExchangedRange& range) { return range.tensor.bytes.data(); });
  const std::byte* end = nullptr;           // end of all ranges so far
  const std::byte* received_end = nullptr;  // end of the written ranges so far
  for (const ExchangedRange& range : ranges) {
    if (before(range.tensor.bytes.data(), range.is_received ? end : received_end)) {
      ArgumentCheck(communicator, *range.call)
          .fail("a received range overlaps another range of the exchange; want each apart from all others");
    }
    end = std::max(end, end_of(range), before);
    if (range.is_received) received_end = std::max(received_end, end_of(range), before);
  }
}

}  // namespace

ExchangeCalls checked_exchange(const Communicator& communicator, std::span<const Send> sends,
                               std::span<const Receive> receives, std::uint64_t step) {
  ExchangeCalls calls;
  std::vector<ExchangedRange> ranges;
  const auto call_of = [step](ConstTensor data, const Message& message) {
    return Call(Operation::kExchange, data.type, data.count_elems(), message, step);
  };
  for (const Send& send : sends) calls.sends.push_back(call_of(send.data, send.message));
  for (const Receive& receive : receives) calls.receives.push_back(call_of(receive.data, receive.message));
  for (std::size_t i = 0; i < sends.size(); ++i) {
    ArgumentCheck(communicator, calls.sends[i]).peer(sends[i].destination, "destination");
    ranges.push_back({sends[i].data, &calls.sends[i], false});
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    ArgumentCheck(communicator, calls.receives[i]).peer(receives[i].source, "source");
    ranges.push_back({receives[i].data, &calls.receives[i], true});
  }
  for (const ExchangedRange& range : ranges) {
    const ArgumentCheck check(communicator, *range.call);
    check.shape(range.tensor, range.call->count_elems, range.is_received ? "received data" : "sent data");
    if (range.tensor.stream == ranges[0].tensor.stream) continue;
    check.fail("the tensors of an exchange are in several memories or on several streams, want one");
  }
  check_apart(communicator, std::move(ranges));
  return calls;
}

}  // namespace droptest::comm
