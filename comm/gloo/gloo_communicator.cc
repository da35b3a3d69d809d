// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/gloo_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "comm/gloo/gloo_backend.h"
#include "comm/rank_order_reduction.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

constexpr int kGroupShift = 48;
constexpr int kChannelShift = 14;  // place of the channel in the id of a group
constexpr std::size_t kMostGroups = (std::size_t{1} << kChannelShift) - 1;
constexpr int kSequenceShift = 2;
/// Bytes to all ranks together: beyond, parts cost less.
constexpr std::size_t kMostSentWhole = std::size_t{256} << 10;

// The range of each part, one after the other.
template <class Span>
std::vector<Span> parts_of(Span whole, std::span<const std::uint64_t> counts, ElementType type) {
  std::vector<Span> parts;
  for (const std::uint64_t count : counts) {
    const std::size_t bytes = count * element_bytes(type);
    parts.push_back(whole.first(bytes));
    whole = whole.subspan(bytes);
  }
  return parts;
}

void copy_bytes(Bytes to, ConstBytes from) {
  if (!from.empty() && to.data() != from.data()) std::memcpy(to.data(), from.data(), from.size());
}

template <class T>
Bytes bytes_of(T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_writable_bytes(std::span(&value, 1));
}

std::vector<int> ranks_up_to(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

const bool kGlooBuilt = true;

std::unique_ptr<Communicator> connect_gloo(const ProcessGroupOptions& options) {
  return std::make_unique<GlooCommunicator>(std::make_shared<GlooMesh>(options));
}

GlooCommunicator::GlooCommunicator(std::shared_ptr<GlooMesh> mesh)
    : GlooCommunicator(mesh, ranks_up_to(mesh->size()), mesh->rank(), 0) {}

GlooCommunicator::GlooCommunicator(std::shared_ptr<GlooMesh> mesh, std::vector<int> world_ranks, int rank,
                                   std::uint16_t group_id)
    : mesh_(std::move(mesh)),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      group_id_(group_id),
      exchange_(*mesh_, world_ranks_, rank,
                std::uint64_t{group_id} << kGroupShift | static_cast<std::uint64_t>(Phase::kExchange),
                std::uint64_t{1} << kSequenceShift),
      sent_(world_ranks_.size()),
      received_(world_ranks_.size()) {}

// Slots, from the top: 2 bits of channel, 14 bits of group, 1 bit for send and recv, 45 bits of sequence, 2 bits of
// phase.
std::uint64_t GlooCommunicator::slot(Phase phase) const {
  return std::uint64_t{group_id_} << kGroupShift | sequence_ << kSequenceShift | static_cast<std::uint64_t>(phase);
}

std::uint64_t GlooCommunicator::peer_slot(std::uint64_t sequence, Phase phase) const {
  return std::uint64_t{group_id_} << kGroupShift | std::uint64_t{1} << (kGroupShift - 1) | sequence << kSequenceShift |
         static_cast<std::uint64_t>(phase);
}

std::vector<GlooCommunicator::Hello> GlooCommunicator::agree(const Hello& own,
                                                             std::span<const std::uint64_t> send_counts,
                                                             std::span<const ConstBytes> to) {
  static_assert(sizeof(Hello) % sizeof(double) == 0, "elements of any type follow it in a message");
  ++sequence_;
  const std::size_t n = world_ranks_.size();
  std::vector<Hello> hellos(n, own);
  std::vector<std::size_t> sizes(n, sizeof(Hello));
  for (std::size_t r = 0; r < n; ++r) {
    if (!send_counts.empty()) hellos[r].sends_elems = send_counts[r];
    const Bytes message = exchange_.outgoing(static_cast<int>(r));
    copy_bytes(message, bytes_of(hellos[r]));
    if (to.empty() || to[r].size() > inline_bytes()) continue;
    copy_bytes(message.subspan(sizeof(Hello)), to[r]);
    sizes[r] += to[r].size();
  }
  exchange_.run(sizes);
  for (std::size_t r = 0; r < n; ++r) {
    if (r == static_cast<std::size_t>(rank_)) continue;
    std::memcpy(&hellos[r], exchange_.incoming(static_cast<int>(r)).data(), sizeof(Hello));
  }
  const auto differs = [&own](const Hello& hello) { return !calls_agree(own.call, hello.call); };
  if (std::any_of(hellos.begin(), hellos.end(), differs)) {
    std::vector<Call> calls;
    for (const Hello& hello : hellos) calls.push_back(hello.call);
    mesh_->fail("the ranks call different things: " + describe_disagreement(calls, world_ranks_));
  }
  return hellos;
}

void GlooCommunicator::check_receive_counts(const Call& call, std::span<const Hello> hellos,
                                            std::span<const std::uint64_t> receive_counts) {
  for (std::size_t s = 0; s < hellos.size(); ++s) {
    if (hellos[s].sends_elems == receive_counts[s]) continue;
    mesh_->fail("rank " + std::to_string(world_ranks_[s]) + " sends " + std::to_string(hellos[s].sends_elems) +
                " elements to rank " + std::to_string(world_rank(rank_)) + ", which expects " +
                std::to_string(receive_counts[s]) + " " + call_context(call));
  }
}

void GlooCommunicator::agree_on(const Call& call, std::span<const std::uint64_t> send_counts,
                                std::span<const std::uint64_t> receive_counts) {
  collectives_.drain();
  const GlooMesh::CallScope scope(*mesh_, call);
  const std::vector<Hello> hellos = agree({.call = call}, send_counts);
  if (!receive_counts.empty()) check_receive_counts(call, hellos, receive_counts);
}

void GlooCommunicator::take_parts(std::span<const ConstBytes> to, std::span<const Bytes> from, Phase phase) {
  std::vector<GlooMesh::Transfer> transfers;
  for (int r = 0; r < world_size(); ++r) {
    const Bytes part = from[static_cast<std::size_t>(r)];
    if (r == rank_) continue;
    if (part.size() <= inline_bytes()) {
      copy_bytes(part, inlined(r, part.size()));
    } else {
      transfers.push_back(mesh_->start_receive(part, world_rank(r), slot(phase)));
    }
  }
  // Each rank begins with its right neighbour, so that not all send to the same one at once.
  for (int i = 1; i < world_size(); ++i) {
    const int r = (rank_ + i) % world_size();
    const ConstBytes part = to[static_cast<std::size_t>(r)];
    if (part.size() > inline_bytes()) transfers.push_back(mesh_->start_send(part, world_rank(r), slot(phase)));
  }
  for (GlooMesh::Transfer& transfer : transfers) mesh_->finish(transfer);
}

void GlooCommunicator::reduce_own_part(const Call& call, ConstTensor input, Tensor output,
                                       std::span<const std::uint64_t> counts, PartReduction* reduction) {
  const auto n = world_ranks_.size();
  const auto self = static_cast<std::size_t>(rank_);
  const std::vector<ConstBytes> to = parts_of(input.bytes, counts, input.type);
  agree({.call = call}, {}, to);
  const std::size_t bytes = to[self].size();
  if (bytes > inline_bytes() && received_parts_.size() < (n - 1) * bytes) received_parts_.resize((n - 1) * bytes);
  Bytes free = received_parts_;
  std::vector<Bytes> from(n);
  std::vector<const std::byte*> inputs(n);
  for (std::size_t r = 0; r < n; ++r) {
    if (r == self) {
      inputs[r] = to[self].data();
    } else if (bytes <= inline_bytes()) {
      inputs[r] = inlined(static_cast<int>(r), bytes).data();
    } else {
      from[r] = free.first(bytes);
      free = free.subspan(bytes);
      inputs[r] = from[r].data();
    }
  }
  take_parts(to, from, Phase::kReduce);
  std::byte* const outputs[] = {output.bytes.data()};
  if (reduction != nullptr) return reduction->reduce(inputs, outputs, {});
  reduce_in_rank_order(call.reduce_op, input.type, inputs, outputs, counts[self]);
}

void GlooCommunicator::gather_parts(const Call& call, Tensor output, std::span<const std::uint64_t> counts) {
  const std::vector<Bytes> from = parts_of(output.bytes, counts, output.type);
  const std::vector<ConstBytes> to(world_ranks_.size(), from[static_cast<std::size_t>(rank_)]);
  agree({.call = call}, {}, to);
  take_parts(to, from, Phase::kGather);
}

// Every rank gets every input, and reduces all of it: one exchange instead of two.
void GlooCommunicator::reduce_everywhere(const Call& call, ConstTensor input, Tensor output) {
  const auto n = world_ranks_.size();
  agree({.call = call}, {}, std::vector<ConstBytes>(n, input.bytes));
  std::vector<const std::byte*> inputs(n);
  for (int r = 0; r < world_size(); ++r) {
    inputs[static_cast<std::size_t>(r)] = r == rank_ ? input.bytes.data() : inlined(r, input.bytes.size()).data();
  }
  std::byte* const outputs[] = {output.bytes.data()};
  reduce_in_rank_order(call.reduce_op, input.type, inputs, outputs, call.count_elems);
}

Call GlooCommunicator::checked(const CallArguments& arguments) const {
  const Call call = checked_call(*this, arguments, mesh_->step);
  const ArgumentCheck check(*this, call);
  check.on_host(arguments.input);
  check.on_host(arguments.output);
  return call;
}

void GlooCommunicator::run(const CallArguments& arguments) {
  if (arguments.operation == Operation::kExchange) return exchange_now(arguments.sends, arguments.receives);
  if (arguments.operation == Operation::kSend) return send_now(arguments);
  const Call call = checked(arguments);
  if (arguments.operation == Operation::kRecv) {
    const int source = arguments.peer;
    return receive(call, arguments.output, source, ++received_[static_cast<std::size_t>(source)]);
  }
  collectives_.drain();
  carry_out(call, arguments);
}

void GlooCommunicator::carry_out(const Call& call, const CallArguments& arguments) {
  const GlooMesh::CallScope scope(*mesh_, call);
  const ConstTensor input = arguments.input;
  const Tensor output = arguments.output;
  const std::span<const std::uint64_t> counts = arguments.counts;
  switch (arguments.operation) {
    case Operation::kAllReduce:
    case Operation::kAllReduceWith:
      return all_reduce_now(call, input, output, arguments.reduction);
    case Operation::kReduceScatter:
    case Operation::kReduceScatterWith:
      return reduce_own_part(call, input, output, counts, arguments.reduction);
    case Operation::kAllGather:
      copy_bytes(parts_of(output.bytes, counts, call.type)[static_cast<std::size_t>(rank_)], input.bytes);
      return gather_parts(call, output, counts);
    case Operation::kAllToAll:
      return all_to_all_now(call, arguments);
    case Operation::kBarrier:
      agree({.call = call}, {});
      return;
    case Operation::kBroadcast:
      return broadcast_now(call, output);
    default:
      DROPTEST_CHECK(false, std::string(operation_name(arguments.operation)) + " is no collective");
  }
}

void GlooCommunicator::all_reduce_now(const Call& call, ConstTensor input, Tensor output, PartReduction* reduction) {
  if (reduction == nullptr && input.bytes.size() <= std::min(inline_bytes(), kMostSentWhole / world_ranks_.size())) {
    return reduce_everywhere(call, input, output);
  }
  const std::vector<std::uint64_t> counts = even_counts(call.count_elems, world_size());
  const Bytes own = parts_of(output.bytes, counts, call.type)[static_cast<std::size_t>(rank_)];
  reduce_own_part(call, input, {call.type, own}, counts, reduction);
  gather_parts(call, output, counts);
}

void GlooCommunicator::all_to_all_now(const Call& call, const CallArguments& arguments) {
  ConstBytes input = arguments.input.bytes;
  std::vector<std::byte> input_copy;  // arriving parts would overwrite parts of an input in place
  if (input.data() == arguments.output.bytes.data()) {
    input_copy.assign(input.begin(), input.end());
    input = input_copy;
  }
  const std::vector<ConstBytes> to = parts_of(input, arguments.counts, call.type);
  check_receive_counts(call, agree({.call = call}, arguments.counts, to), arguments.receive_counts);
  const std::vector<Bytes> from = parts_of(arguments.output.bytes, arguments.receive_counts, call.type);
  copy_bytes(from[static_cast<std::size_t>(rank_)], to[static_cast<std::size_t>(rank_)]);
  take_parts(to, from, Phase::kGather);
}

void GlooCommunicator::broadcast_now(const Call& call, Tensor data) {
  std::vector<ConstBytes> to(world_ranks_.size());
  std::vector<Bytes> from(world_ranks_.size());
  if (rank_ == call.root) {
    to.assign(to.size(), data.bytes);
  } else {
    from[static_cast<std::size_t>(call.root)] = data.bytes;
  }
  agree({.call = call}, {}, to);
  take_parts(to, from, Phase::kGather);
}

std::unique_ptr<WorkInFlight> GlooCommunicator::begin(const CallArguments& arguments) {
  const Call call = checked(arguments);
  if (call.operation == Operation::kSend) return begin_send(call, arguments.input, arguments.peer);
  if (call.operation == Operation::kRecv) return begin_recv(call, arguments.output, arguments.peer);
  return collectives_.start([this, call, kept = std::make_shared<KeptArguments>(arguments)] {  // owned by its task
    carry_out(call, kept->get());
  });
}

// The data departs straight from the tensor at once, and the background thread waits for its end.
std::unique_ptr<WorkInFlight> GlooCommunicator::begin_send(const Call& call, ConstTensor data, int destination) {
  struct Sent {
    Call call;
    std::vector<GlooMesh::Transfer> transfers;
  };
  const GlooMesh::CallScope scope(*mesh_, call);
  const std::uint64_t number = ++sent_[static_cast<std::size_t>(destination)];
  if (destination == rank_) {
    to_self_.emplace(number, ToSelf{call, {data.bytes.begin(), data.bytes.end()}});
    return nullptr;
  }
  const auto sent = std::make_shared<Sent>(Sent{call, {}});  // owned by its task
  const int peer = world_rank(destination);
  sent->transfers.push_back(
      mesh_->start_send(std::as_bytes(std::span(&sent->call, 1)), peer, peer_slot(number, Phase::kHello)));
  if (!data.bytes.empty()) {
    sent->transfers.push_back(mesh_->start_send(data.bytes, peer, peer_slot(number, Phase::kGather)));
  }
  return sending_[destination].start([this, sent] {
    const GlooMesh::CallScope task_scope(*mesh_, sent->call);
    for (GlooMesh::Transfer& transfer : sent->transfers) mesh_->finish(transfer);
  });
}

std::unique_ptr<WorkInFlight> GlooCommunicator::begin_recv(const Call& call, Tensor data, int source) {
  class FromSelf final : public WorkInFlight {
   public:
    FromSelf(GlooCommunicator& owner, const Call& of, Tensor to, std::uint64_t number)
        : owner_(owner), call_(of), data_(to), number_(number) {}
    void finish() override { owner_.receive(call_, data_, owner_.rank_, number_); }
    bool finished() override { return owner_.to_self_.contains(number_) || owner_.mesh_->failure(); }

   private:
    GlooCommunicator& owner_;
    Call call_;
    Tensor data_;
    std::uint64_t number_;
  };
  const std::uint64_t number = ++received_[static_cast<std::size_t>(source)];
  if (source == rank_) return std::make_unique<FromSelf>(*this, call, data, number);
  return receiving_[source].start([this, call, data, source, number] { receive(call, data, source, number); });
}

void GlooCommunicator::send_now(const CallArguments& arguments) {
  const Call call = checked(arguments);
  const ConstTensor data = arguments.input;
  const int destination = arguments.peer;
  const GlooMesh::CallScope scope(*mesh_, call);
  std::vector<std::byte> bytes(data.bytes.begin(), data.bytes.end());
  if (destination == rank_) {
    to_self_.emplace(++sent_[static_cast<std::size_t>(rank_)], ToSelf{call, std::move(bytes)});
    return;
  }
  const std::uint64_t sequence = start_message(call, destination);
  if (!bytes.empty()) {
    mesh_->send_buffered(std::move(bytes), world_rank(destination), peer_slot(sequence, Phase::kGather));
  }
}

// Sends the first of the two parts of a message: the sender's call.
std::uint64_t GlooCommunicator::start_message(const Call& call, int destination) {
  const std::uint64_t sequence = ++sent_[static_cast<std::size_t>(destination)];
  const ConstBytes call_bytes = std::as_bytes(std::span(&call, 1));
  mesh_->send_buffered({call_bytes.begin(), call_bytes.end()}, world_rank(destination),
                       peer_slot(sequence, Phase::kHello));
  return sequence;
}

void GlooCommunicator::check_message(const Call& call, const Call& sent, int source) {
  if (calls_agree(other_end_of(call), sent)) return;
  mesh_->fail("rank " + std::to_string(world_rank(source)) + " calls " + describe(sent) + ", rank " +
              std::to_string(world_rank(rank_)) + " calls " + describe(call));
}

void GlooCommunicator::send_call(const Call& call, int destination) {
  const GlooMesh::CallScope scope(*mesh_, call);
  start_message(call, destination);
}

void GlooCommunicator::receive_call(const Call& call, int source) {
  receive(call, {call.type, {}}, source, ++received_[static_cast<std::size_t>(source)]);
}

// Receives the sender's call first, then the data.
void GlooCommunicator::receive(const Call& call, Tensor data, int source, std::uint64_t number) {
  const GlooMesh::CallScope scope(*mesh_, call);
  if (source == rank_) return receive_from_self(call, data, number);
  Call sent;
  auto hello = mesh_->start_receive(bytes_of(sent), world_rank(source), peer_slot(number, Phase::kHello));
  mesh_->finish(hello);
  check_message(call, sent, source);
  if (data.bytes.empty()) return;
  auto payload = mesh_->start_receive(data.bytes, world_rank(source), peer_slot(number, Phase::kGather));
  mesh_->finish(payload);
}

void GlooCommunicator::receive_from_self(const Call& call, Tensor data, std::uint64_t number) {
  const auto found = to_self_.find(number);
  if (found == to_self_.end()) mesh_->fail("this rank waits for a message of its own that it did not send");
  const ToSelf own = std::move(found->second);
  to_self_.erase(found);
  check_message(call, own.call, rank_);
  copy_bytes(data.bytes, own.bytes);
}

// All sends and the receives of calls are started before any wait. The receive of a payload is started later, when the
// sender's call has shown that the sizes agree: the call goes first, as in send.
void GlooCommunicator::exchange_now(std::span<const Send> sends, std::span<const Receive> receives) {
  const ExchangeCalls calls = checked_exchange(*this, sends, receives, mesh_->step);
  for (std::size_t i = 0; i < sends.size(); ++i) ArgumentCheck(*this, calls.sends[i]).on_host(sends[i].data);
  for (std::size_t i = 0; i < receives.size(); ++i) ArgumentCheck(*this, calls.receives[i]).on_host(receives[i].data);
  struct Part {
    const Call& call;
    GlooMesh::Transfer transfer;
  };
  std::vector<Part> sent;
  for (std::size_t i = 0; i < sends.size(); ++i) {
    const Call& call = calls.sends[i];
    const ConstBytes data = sends[i].data.bytes;
    const int destination = sends[i].destination;
    const GlooMesh::CallScope scope(*mesh_, call);
    const std::uint64_t sequence = ++sent_[static_cast<std::size_t>(destination)];
    if (destination == rank_) {
      to_self_.emplace(sequence, ToSelf{call, {data.begin(), data.end()}});
      continue;
    }
    const auto start = [&](ConstBytes bytes, Phase phase) {
      sent.push_back({call, mesh_->start_send(bytes, world_rank(destination), peer_slot(sequence, phase))});
    };
    start(std::as_bytes(std::span(&call, 1)), Phase::kHello);
    if (!data.empty()) start(data, Phase::kGather);
  }
  std::vector<Call> theirs(receives.size());
  std::vector<std::uint64_t> sequences(receives.size());
  std::vector<Part> hellos;
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const GlooMesh::CallScope scope(*mesh_, calls.receives[i]);
    const int source = receives[i].source;
    sequences[i] = ++received_[static_cast<std::size_t>(source)];
    if (source == rank_) {
      receive_from_self(calls.receives[i], receives[i].data, sequences[i]);
      continue;
    }
    const std::uint64_t hello_slot = peer_slot(sequences[i], Phase::kHello);
    hellos.push_back({calls.receives[i], mesh_->start_receive(bytes_of(theirs[i]), world_rank(source), hello_slot)});
  }
  const auto finish = [this](Part& part) {
    const GlooMesh::CallScope scope(*mesh_, part.call);
    mesh_->finish(part.transfer);
  };
  std::vector<Part> received;
  auto hello = hellos.begin();
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const int source = receives[i].source;
    if (source == rank_) continue;
    finish(*hello++);
    const GlooMesh::CallScope scope(*mesh_, calls.receives[i]);
    check_message(calls.receives[i], theirs[i], source);
    const Bytes data = receives[i].data.bytes;
    if (data.empty()) continue;
    const std::uint64_t slot = peer_slot(sequences[i], Phase::kGather);
    received.push_back({calls.receives[i], mesh_->start_receive(data, world_rank(source), slot)});
  }
  std::ranges::for_each(received, finish);
  std::ranges::for_each(sent, finish);
}

std::unique_ptr<Communicator> GlooCommunicator::split(int color, int key) { return split_group(color, key); }

std::unique_ptr<Communicator> GlooCommunicator::channel(int number) {
  static_assert(kMostChannels < 4, "two bits of a group's id are the number of a channel and 1");
  const auto id = static_cast<std::uint16_t>(group_id_ | (number + 1) << kChannelShift);
  return std::unique_ptr<Communicator>(new GlooCommunicator(mesh_, world_ranks_, rank_, id));
}

std::unique_ptr<GlooCommunicator> GlooCommunicator::split_group(int color, int key) {
  const Call call(Operation::kSplit, ElementType::kFloat32, 0, {.name = "split"}, mesh_->step);
  collectives_.drain();
  const GlooMesh::CallScope scope(*mesh_, call);
  const std::vector<Hello> hellos =
      agree({.call = call, .color = color, .key = key, .next_group_id = mesh_->next_group_id}, {});
  // Ranks may have taken part in different numbers of splits: the largest of their next ids is free on all ranks.
  std::vector<int> colors;
  std::uint16_t first_id = 0;
  std::vector<int> members;
  for (int r = 0; r < world_size(); ++r) {
    const Hello& hello = hellos[static_cast<std::size_t>(r)];
    first_id = std::max(first_id, hello.next_group_id);
    if (hello.color >= 0) colors.push_back(hello.color);
    if (hello.color == color) members.push_back(r);
  }
  std::sort(colors.begin(), colors.end());
  colors.erase(std::unique(colors.begin(), colors.end()), colors.end());
  if (first_id + colors.size() > kMostGroups) {
    mesh_->fail("more than " + std::to_string(kMostGroups) + " groups were split from one launch");
  }
  mesh_->next_group_id = static_cast<std::uint16_t>(first_id + colors.size());
  if (color < 0) return nullptr;
  const auto order = [&hellos](int a, int b) {
    return hellos[static_cast<std::size_t>(a)].key < hellos[static_cast<std::size_t>(b)].key;
  };
  std::stable_sort(members.begin(), members.end(), order);
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  for (int& member : members) member = world_rank(member);
  const auto index = std::lower_bound(colors.begin(), colors.end(), color) - colors.begin();
  return std::unique_ptr<GlooCommunicator>(new GlooCommunicator(mesh_, std::move(members), static_cast<int>(place),
                                                                static_cast<std::uint16_t>(first_id + index)));
}

}  // namespace droptest::comm
