// SPDX-License-Identifier: Apache-2.0
#include "comm/local/local_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "comm/device/tensor_operations.h"
#include "comm/rank_order_reduction.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {
namespace {

std::uint64_t sum_before(std::span<const std::uint64_t> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::uint64_t{0});
}

// Elements of part `rank` if `count_elems` are cut as even_counts() cuts them.
sim::ElementRange even_part(std::uint64_t count_elems, int rank, int world_size) {
  const auto r = static_cast<std::uint64_t>(rank);
  const auto parts = static_cast<std::uint64_t>(world_size);
  const std::uint64_t longer_parts = count_elems % parts;
  const std::uint64_t begin = r * (count_elems / parts) + std::min(r, longer_parts);
  return {begin, begin + count_elems / parts + (r < longer_parts ? 1 : 0)};
}

// Copies bytes in host memory or, if there is a stream, on its device.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Stream* stream) {
  if (stream != nullptr) return copy_on_device(from, to, bytes, *stream);
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

// `like` has the type and the memory of all ranges.
void reduce_where_they_are(ReduceOp op, ConstTensor like, std::span<const std::byte* const> inputs,
                           std::span<std::byte* const> outputs, std::uint64_t count_elems) {
  if (like.stream != nullptr) return reduce_on_device(op, like.type, inputs, outputs, count_elems, *like.stream);
  reduce_in_rank_order(op, like.type, inputs, outputs, count_elems);
}

// The order of a collective's work on a device. Every rank has a share there. A share waits in its rank's stream until
// the streams of the other ranks have reached the collective; later work on the ranks' streams waits for the shares of
// all. The host waits for neither. Does nothing for tensors in host memory.
class DeviceOrder {
 public:
  DeviceOrder(LocalGroup& group, int rank, Stream* stream) : group_(group), rank_(rank), stream_(stream) {
    if (stream_ != nullptr) group_.device_points(rank_).arrived.record(*stream_);
  }

  // Throws: ConfigError unless the tensors of all ranks are in one kind of memory.
  void begin_share(const LocalMeeting& meeting) const {
    for (int r = 0; r < group_.size(); ++r) {
      if ((meeting.call_of(r).input.stream != nullptr) == (stream_ != nullptr)) continue;
      const int on_host = stream_ == nullptr ? rank_ : r;
      throw ConfigError(describe(meeting.call_of(r).call) + ": rank " + std::to_string(group_.world_rank(on_host)) +
                        " gives host memory, rank " + std::to_string(group_.world_rank(on_host == r ? rank_ : r)) +
                        " device memory; want one of them on all ranks");
    }
    for_others([this](LocalGroup::DevicePoints& points) { stream_->wait(points.arrived); });
  }
  void end_share() const {
    if (stream_ != nullptr) group_.device_points(rank_).done.record(*stream_);
  }
  void finish() const {
    for_others([this](LocalGroup::DevicePoints& points) { stream_->wait(points.done); });
  }

 private:
  template <class Visit>
  void for_others(const Visit& visit) const {
    for (int r = 0; stream_ != nullptr && r < group_.size(); ++r) {
      if (r != rank_) visit(group_.device_points(r));
    }
  }

  LocalGroup& group_;
  int rank_;
  Stream* stream_;
};

}  // namespace

// One rank's part in a collective. It owns the buffers of its share, since several collectives may be under way.
class LocalCommunicator::Collective final : public LocalShare, public WorkInFlight {
 public:
  explicit Collective(LocalCommunicator& owner)
      : owner_(owner),
        inputs_(static_cast<std::size_t>(owner.world_size())),
        outputs_(inputs_.size()),
        reductions_(inputs_.size()) {}

  /// Starts a collective in host memory; keeps the arguments.
  void start(const CallArguments& arguments) {
    kept_.emplace(arguments);
    show(kept_->get());
    meeting_ = &group().join(owner_.rank_, shown_, this);
  }
  void finish() override { group().finish(owner_.rank_, *meeting_); }
  bool finished() override { return group().finished(*meeting_); }

  /// Runs a blocking collective.
  void meet(const CallArguments& arguments) {
    const StreamTurns::Turn turn(owner_.in_place_copy_turns_,
                                 arguments.operation == Operation::kAllToAll ? arguments.input.stream : nullptr);
    show(arguments);
    const DeviceOrder order(group(), owner_.rank_, shown_.input.stream);
    order_ = &order;
    group().meet(owner_.rank_, shown_, this);
    order.finish();
  }

  void run(LocalMeeting& meeting) override {
    // A started collective is in host memory, and orders no streams.
    order_ == nullptr ? DeviceOrder(group(), owner_.rank_, nullptr).begin_share(meeting) : order_->begin_share(meeting);
    switch (shown_.call.operation) {
      case Operation::kAllReduce:
      case Operation::kAllReduceWith:
        reduce_own_part(meeting);
        break;
      case Operation::kReduceScatter:
      case Operation::kReduceScatterWith:
        reduce_and_scatter(meeting);
        break;
      case Operation::kAllGather:
        gather(meeting);
        break;
      case Operation::kAllToAll:
        take_parts(meeting);
        break;
      case Operation::kBroadcast:
        copy_bytes(shown_.output.bytes.data(), meeting.call_of(shown_.call.root).input.bytes.data(),
                   shown_.output.bytes.size(), shown_.output.stream);
        break;
      default:
        DROPTEST_CHECK(false, std::string(operation_name(shown_.call.operation)) + " is no collective");
    }
    if (order_ != nullptr) order_->end_share();
  }

 private:
  LocalGroup& group() const { return *owner_.group_; }

  void show(const CallArguments& arguments) {
    reduction_ = arguments.reduction;
    shown_ = {.call = checked_call(owner_, arguments, *owner_.step_),
              .input = arguments.input,
              .output = arguments.output,
              .send_counts = arguments.counts,
              .receive_counts = arguments.receive_counts,
              .reduction = arguments.reduction};
    const bool in_place = arguments.input.bytes.data() == arguments.output.bytes.data();
    if (shown_.call.operation == Operation::kAllToAll && in_place) copy_input();
  }

  // Copies the input if it is in place: the output would overwrite input that other ranks have not read yet.
  void copy_input() {
    const std::span<const std::byte> input = shown_.input.bytes;
    if (Stream* stream = shown_.input.stream; stream != nullptr) {
      std::byte* copied = owner_.in_place_copy_.at_least(input.size(), *stream);
      copy_on_device(input.data(), copied, input.size(), *stream);
      shown_.input.bytes = {copied, input.size()};
    } else {
      input_copy_.assign(input.begin(), input.end());
      shown_.input.bytes = input_copy_;
    }
  }

  // Rank r's share is part r, written to all outputs: no other share touches part r, so in-place calls are safe.
  void reduce_own_part(const LocalMeeting& meeting) {
    const sim::ElementRange part = even_part(shown_.call.count_elems, owner_.rank_, group().size());
    const std::size_t begin_bytes = part.begin * element_bytes(shown_.call.type);
    for (std::size_t r = 0; r < outputs_.size(); ++r) {
      outputs_[r] = meeting.call_of(static_cast<int>(r)).output.bytes.data() + begin_bytes;
    }
    reduce(meeting, begin_bytes, outputs_, part.size());
  }

  void reduce_and_scatter(const LocalMeeting& meeting) {
    std::byte* const outputs[] = {shown_.output.bytes.data()};
    const std::uint64_t begin = sum_before(shown_.send_counts, owner_.rank_);
    reduce(meeting, begin * element_bytes(shown_.call.type), outputs, shown_.output.count_elems());
  }

  void reduce(const LocalMeeting& meeting, std::size_t begin_bytes, std::span<std::byte* const> outputs,
              std::uint64_t count_elems) {
    for (std::size_t r = 0; r < inputs_.size(); ++r) {
      const LocalCall& shown = meeting.call_of(static_cast<int>(r));
      inputs_[r] = shown.input.bytes.data() + begin_bytes;
      reductions_[r] = shown.reduction;
    }
    if (reduction_ != nullptr) return reduction_->reduce(inputs_, outputs, reductions_);
    reduce_where_they_are(shown_.call.reduce_op, shown_.input, inputs_, outputs, count_elems);
  }

  // Each share writes only its rank's output; it never writes a part that another share reads in place.
  void gather(const LocalMeeting& meeting) {
    std::byte* to = shown_.output.bytes.data();
    for (int r = 0; r < group().size(); ++r) {
      const std::span<const std::byte> part = meeting.call_of(r).input.bytes;
      copy_bytes(to, part.data(), part.size(), shown_.output.stream);
      to += part.size();
    }
  }

  void take_parts(const LocalMeeting& meeting) {
    std::byte* to = shown_.output.bytes.data();
    const std::size_t size = element_bytes(shown_.call.type);
    for (int s = 0; s < group().size(); ++s) {
      const LocalCall& source = meeting.call_of(s);
      const std::size_t begin_bytes = sum_before(source.send_counts, owner_.rank_) * size;
      const std::size_t bytes = shown_.receive_counts[static_cast<std::size_t>(s)] * size;
      copy_bytes(to, source.input.bytes.data() + begin_bytes, bytes, shown_.output.stream);
      to += bytes;
    }
  }

  LocalCommunicator& owner_;
  std::optional<KeptArguments> kept_;  ///< arguments of a started collective
  LocalMeeting* meeting_ = nullptr;    ///< meeting of a started collective
  LocalCall shown_;
  PartReduction* reduction_ = nullptr;            ///< null: the reduction of the call
  const DeviceOrder* order_ = nullptr;            ///< order of a blocking collective; null: in host memory
  std::vector<std::byte> input_copy_;             ///< copy of the input of an all_to_all in place
  std::vector<const std::byte*> inputs_;          ///< the begin of the part in each rank's input
  std::vector<std::byte*> outputs_;               ///< the begin of the part in each rank's output
  std::vector<const PartReduction*> reductions_;  ///< reductions of all ranks
};

// A message for which this rank has begun to wait.
class LocalCommunicator::Reception final : public WorkInFlight {
 public:
  Reception(LocalCommunicator& owner, const CallArguments& arguments)
      : owner_(owner),
        source_(arguments.peer),
        call_{.call = checked_call(owner, arguments, *owner.step_), .output = arguments.output},
        number_(owner.group_->next_receive(source_, owner.rank_)) {}

  void finish() override { owner_.group_->take(source_, owner_.rank_, number_, call_); }
  bool finished() override { return owner_.group_->has_come(source_, owner_.rank_, number_); }

 private:
  LocalCommunicator& owner_;
  int source_;
  LocalCall call_;
  std::uint64_t number_;
};

LocalCommunicator::LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
    : group_(std::move(group)), rank_(rank), blocking_(std::make_unique<Collective>(*this)) {}

LocalCommunicator::~LocalCommunicator() = default;

std::unique_ptr<WorkInFlight> LocalCommunicator::begin(const CallArguments& arguments) {
  if (arguments.operation == Operation::kRecv) return std::make_unique<Reception>(*this, arguments);
  const bool on_device = arguments.input.stream != nullptr || arguments.output.stream != nullptr;
  if (arguments.operation == Operation::kSend || on_device) return Communicator::begin(arguments);
  auto work = std::make_unique<Collective>(*this);
  work->start(arguments);
  return work;
}

void LocalCommunicator::run(const CallArguments& arguments) {
  switch (arguments.operation) {
    case Operation::kSend:
      return send_now(arguments);
    case Operation::kRecv:
      return Reception(*this, arguments).finish();
    case Operation::kExchange:
      return exchange_now(arguments.sends, arguments.receives);
    case Operation::kBarrier:
      return barrier_now(arguments);
    default:
      return blocking_->meet(arguments);
  }
}

void LocalCommunicator::send_now(const CallArguments& arguments) {
  group_->post(rank_, arguments.peer, {.call = checked_call(*this, arguments, *step_), .input = arguments.input});
}

void LocalCommunicator::exchange_now(std::span<const Send> sends, std::span<const Receive> receives) {
  const ExchangeCalls calls = checked_exchange(*this, sends, receives, *step_);
  for (std::size_t i = 0; i < sends.size(); ++i) {
    group_->post(rank_, sends[i].destination, {.call = calls.sends[i], .input = sends[i].data});
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const int source = receives[i].source;
    const std::uint64_t number = group_->next_receive(source, rank_);
    group_->take(source, rank_, number, {.call = calls.receives[i], .output = receives[i].data});
  }
}

void LocalCommunicator::barrier_now(const CallArguments& arguments) {
  group_->meet(rank_, {.call = checked_call(*this, arguments, *step_)}, nullptr);
}

std::unique_ptr<Communicator> LocalCommunicator::split(int color, int key) {
  class Share final : public LocalShare {
   public:
    Share(LocalGroup& group, int of_color) : group_(group), color_(of_color) {}
    void run(LocalMeeting& meeting) override { part = group_.part_of(meeting, color_); }
    std::shared_ptr<LocalGroup> part;

   private:
    LocalGroup& group_;
    int color_;
  };
  const Call call(Operation::kSplit, ElementType::kFloat32, 0, {.name = "split"}, *step_);
  Share share(*group_, color);
  group_->meet(rank_, {.call = call, .color = color, .key = key}, color < 0 ? nullptr : &share);
  if (share.part == nullptr) return nullptr;
  int part_rank = 0;
  while (share.part->world_rank(part_rank) != world_rank(rank_)) ++part_rank;
  auto communicator = std::make_unique<LocalCommunicator>(std::move(share.part), part_rank);
  communicator->step_ = step_;
  return communicator;
}

std::unique_ptr<Communicator> LocalCommunicator::channel(int number) {
  auto channel = std::make_unique<LocalCommunicator>(group_->channel(number), rank_);
  channel->step_ = step_;
  return channel;
}

void LocalCommunicator::abort(std::string_view reason) noexcept {
  try {
    group_->world().abort(world_rank(rank_), reason);
  } catch (...) {
    // Out of memory for the text: the peers fail at their timeout, which names this rank too.
  }
}

}  // namespace droptest::comm
