// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/lossy_call.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/rank_state.h"
#include "comm/lossy/statistics/result_sampler.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

// Whether all ranks of a collective get equal results without loss.
bool has_replicas(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kAllGather || operation == Operation::kBroadcast;
}

// Message::lost needs one hop: a rank knows only the losses of its own links.
void require_one_hop(const CallArguments& call, const PathEntry& path) {
  const bool copies = call.operation == Operation::kAllGather || call.operation == Operation::kBroadcast;
  const bool aggregates = call.operation == Operation::kAllReduce && path.route == Route::kAggregated;
  if (call.operation == Operation::kAllToAll || aggregates || (copies && path.route != Route::kManyHops)) return;
  throw ConfigError(
      std::string(operation_name(call.operation)) + " on path " + std::string(path.name) + ", message \"" +
      std::string(call.message.name) + "\": got a request for its lost elements, but values " +
      (copies ? "take several hops, so a receiver does not know all losses" : "are sums, of which parts are lost") +
      "; want all_to_all, recv or exchange, all_gather or broadcast on path direct or contribution, or all_reduce on "
      "path contribution");
}

// A compression acts on contributions to sums of floats.
void check_compression(const Compression& compression, const CallArguments& call) {
  if (compression.kind == CompressionKind::kNone) return;
  const bool sums = call.operation == Operation::kAllReduce ||
                    (call.operation == Operation::kReduceScatter && codes_values(compression));
  if (sums && call.op != ReduceOp::kMax && !is_integer(call.input.type)) return;
  throw ConfigError("message \"" + std::string(call.message.name) + "\" of class " +
                    std::string(sim::traffic_class_name(call.message.traffic_class)) + ": compression " +
                    std::string(compression_entry(compression.kind).name) + " has no meaning for " +
                    std::string(operation_name(call.operation)) +
                    (!sums                       ? ""
                     : call.op == ReduceOp::kMax ? " of a maximum"
                                                 : " of integers") +
                    "; want a sum or mean of floats by all_reduce" +
                    (codes_values(compression) ? " or reduce_scatter" : "") + ", or the class control");
}

}  // namespace

LossyCall::LossyCall(LossyCommunicator& group, const CallArguments& arguments)
    : group_(group), arguments_(arguments), delivery_(group.delivery_of(arguments.message)), step_(group.state_->step) {
  RankState& state = *group.state_;
  const Operation operation = arguments.operation;
  const Message& message = arguments.message;
  if (message.lost != nullptr) message.lost->clear();
  // The received values of messages that are sent again are not used.
  is_sampled_ = group.samples(operation == Operation::kSend ? arguments.input.type : arguments.output.type) &&
                !sim::repeated_class(message.traffic_class);
  LossyCommunicator::Paths& of_class = group.paths_of(message.traffic_class, delivery_);
  check_compression(of_class.network->compression, arguments);
  if (is_message(operation)) {
    message_ = of_class.messages.take([&] {
      const PathEntry& path = path_entry(of_class.network->path);
      return std::make_unique<PeerMessage>(group.context_of(*of_class.network, path), state.ledger.network().seed);
    });
  } else {
    const PathEntry& path =
        path_in(*of_class.network, std::max(arguments.input.count_elems(), arguments.output.count_elems()));
    if (message.lost != nullptr) require_one_hop(arguments, path);
    path_ = of_class.paths[path.name].take([&] { return group.make_path(*of_class.network, path); });
  }
  plan(state.fates_need_times ? CallFates::Phase::kReserve : CallFates::Phase::kAtOnce);
  // The receiver of a message compares.
  if (is_sampled_ && operation != Operation::kSend) sample_number_ = state.sampled_calls++;
}

void LossyCall::draw() { plan(CallFates::Phase::kDraw); }

void LossyCall::plan(CallFates::Phase phase) {
  RankState& state = *group_.state_;
  CallFates fates;
  const LayerKey key{arguments_.message.traffic_class, arguments_.message.layer};
  fates.group = group_.number();
  fates.step = step_;
  fates.delivery = delivery_;
  fates.ordinal = arguments_.message.ordinal;
  fates.phase = phase;
  fates.reserved = &reserved_;
  if (phase == CallFates::Phase::kDraw) fates.times = &state.clock->send_times();
  const bool is_final = phase != CallFates::Phase::kReserve;
  if (is_message(arguments_.operation)) {
    fates.ends = CallFates::Ends::kApart;
    message_->plan(arguments_, fates);
    // The receiver records the verdict of a message.
    if (is_final && arguments_.operation == Operation::kRecv) state.verdicts.note_message(key, step_, fates.verdict);
  } else {
    path_->plan(arguments_, fates);
    if (is_final) state.verdicts.note_collective(key, group_.identity_, step_, fates.verdict);
  }
}

Scratch& LossyCall::scratch() {
  if (scratch_.get() == nullptr) scratch_ = group_.scratch_.take([] { return std::make_unique<Scratch>(); });
  return *scratch_;
}

Tensor LossyCall::exact_in(Scratch& scratch) {
  exact_ = scratch.take(Scratch::Slot::kExact, arguments_.output, arguments_.output.count_elems());
  return exact_;
}

void LossyCall::run(Communicator& inner, Scratch& scratch) {
  if (is_sampled_) {
    CallArguments exact_call = arguments_;
    exact_call.output = exact_in(scratch);
    if (arguments_.operation == Operation::kBroadcast) {
      copy(arguments_.output, exact_);
      exact_call.input = exact_;
    }
    inner.run(exact_call);
  }
  path_->run(arguments_, inner, scratch);
  if (!is_sampled_) return;
  sums_ = errors_of(exact_, arguments_.output);
  sums_.coding = path_->coding_errors();
  sums_.ends = path_->compare_ends(inner);
  sums_.calls = group_.inner_.rank() == 0 ? 1 : 0;
  if (has_replicas(arguments_.operation)) sums_.add(divergence_of(inner, arguments_.output, scratch));
}

void LossyCall::compare_message() {
  sums_ = errors_of(exact_, arguments_.output);
  sums_.calls = 1;
}

void LossyCall::note_samples() {
  const Message& message = arguments_.message;
  if (!is_sampled_ || arguments_.operation == Operation::kSend) return;
  group_.state_->add_samples(sample_number_, {message.traffic_class, message.layer}, sums_);
}

Stream* stream_of(const CallArguments& arguments) {
  return arguments.input.stream != nullptr ? arguments.input.stream : arguments.output.stream;
}

}  // namespace droptest::comm
