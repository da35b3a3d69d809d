// SPDX-License-Identifier: Apache-2.0
#include "comm/metered_communicator.h"

#include <chrono>
#include <string>
#include <utility>

namespace droptest::comm {

/// Adds the bytes of a call and, on the rank's own thread, the time until its end.
class MeteredCommunicator::TimedCall {
 public:
  TimedCall(Counters& counters, const MeteredCall& call)
      : counters_(counters), is_own_(std::this_thread::get_id() == counters.own_thread && !counters.in_call) {
    const bool sends = call.operation != Operation::kRecv && call.part != MeteredCall::Part::kWait;
    if (sends) counters_.sent_bytes.fetch_add(call.bytes, std::memory_order_relaxed);
    if (!is_own_) return;
    counters_.in_call = true;
    if (counters_.observer != nullptr) counters_.observer->begins(call);
    start_ = std::chrono::steady_clock::now();
  }
  ~TimedCall() {
    if (!is_own_) return;
    const auto time = std::chrono::steady_clock::now() - start_;
    counters_.waiting_nanoseconds.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(),
                                            std::memory_order_relaxed);
    counters_.in_call = false;
    if (counters_.observer != nullptr) counters_.observer->ends();
  }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;

 private:
  Counters& counters_;
  const bool is_own_;
  std::chrono::steady_clock::time_point start_;
};

class MeteredCommunicator::TimedWork final : public WorkInFlight {
 public:
  TimedWork(std::unique_ptr<WorkInFlight> inner, std::shared_ptr<Counters> counters, const MeteredCall& started)
      : inner_(std::move(inner)),
        counters_(std::move(counters)),
        call_(started),
        name_(started.name),
        group_(started.group) {
    call_.part = MeteredCall::Part::kWait;
    call_.name = name_;
    call_.group = group_;
  }
  void finish() override {
    const TimedCall timed(*counters_, call_);
    inner_->finish();
  }
  bool finished() override { return inner_->finished(); }

 private:
  std::unique_ptr<WorkInFlight> inner_;
  std::shared_ptr<Counters> counters_;  ///< shared with the communicator
  MeteredCall call_;
  std::string name_;
  std::string group_;
};

MeteredCommunicator::MeteredCommunicator(Communicator& inner, CallObserver* observer)
    : inner_(inner), counters_(std::make_shared<Counters>()) {
  counters_->observer = observer;
  name_group();
}

MeteredCommunicator::MeteredCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Counters> counters)
    : owned_(std::move(inner)), inner_(*owned_), counters_(std::move(counters)) {}

// Members split their groups in one order, so that equal ranks have equal numbers.
void MeteredCommunicator::name_group() {
  if (counters_->observer == nullptr) return;
  for (int r = 0; r < inner_.world_size(); ++r) {
    group_ += (r == 0 ? "" : " ") + std::to_string(inner_.world_rank(r));
  }
  const int before = counters_->groups[group_]++;
  if (before > 0) group_ += " (" + std::to_string(before + 1) + ")";
}

MeteredCall MeteredCommunicator::metered(const CallArguments& arguments) {
  const Operation operation = arguments.operation;
  const bool receives = operation == Operation::kRecv;
  const bool has_input = operation != Operation::kBroadcast || arguments.peer == rank();
  MeteredCall call;
  call.operation = operation;
  call.bytes = receives ? arguments.output.bytes.size() : has_input ? arguments.input.bytes.size() : 0;
  call.stream = receives ? arguments.output.stream : arguments.input.stream;
  call.group = group_;
  Message message = arguments.message;
  if (operation == Operation::kExchange) {
    message.name = "exchange";
    for (const Send& send : arguments.sends) call.bytes += send.data.bytes.size();
    if (!arguments.sends.empty()) {
      message = arguments.sends.front().message;
      call.stream = arguments.sends.front().data.stream;
    } else if (!arguments.receives.empty()) {
      message = arguments.receives.front().message;
      call.stream = arguments.receives.front().data.stream;
    }
    call.number = collectives_;  // no collective: its messages are numbered by pairs of ranks
  } else if (!is_message(operation)) {
    call.number = ++collectives_;
  } else if (counters_->observer != nullptr) {
    call.source = inner_.world_rank(receives ? arguments.peer : inner_.rank());
    call.destination = inner_.world_rank(receives ? inner_.rank() : arguments.peer);
    call.number = ++messages_[{call.source, call.destination}];
  }
  call.traffic_class = message.traffic_class;
  call.name = message.name;
  call.layer = message.layer;
  return call;
}

CommunicatorUse MeteredCommunicator::use() const {
  return {counters_->sent_bytes.load(), 1e-9 * static_cast<double>(counters_->waiting_nanoseconds.load())};
}

void MeteredCommunicator::run(const CallArguments& arguments) {
  const TimedCall timed(*counters_, metered(arguments));
  inner_.run(arguments);
}

std::unique_ptr<WorkInFlight> MeteredCommunicator::begin(const CallArguments& arguments) {
  MeteredCall call = metered(arguments);
  call.part = MeteredCall::Part::kStart;
  std::unique_ptr<WorkInFlight> work;
  {
    const TimedCall timed(*counters_, call);
    work = inner_.begin(arguments);
  }
  if (work == nullptr) return nullptr;  // done already
  return std::unique_ptr<WorkInFlight>(new TimedWork(std::move(work), counters_, call));
}

std::unique_ptr<Communicator> MeteredCommunicator::split(int color, int key) {
  std::unique_ptr<Communicator> part = inner_.split(color, key);
  if (part == nullptr) return nullptr;
  std::unique_ptr<MeteredCommunicator> metered(new MeteredCommunicator(std::move(part), counters_));
  metered->name_group();
  return metered;
}

std::unique_ptr<Communicator> MeteredCommunicator::channel(int number) {
  std::unique_ptr<Communicator> other = inner_.channel(number);
  if (other == nullptr) return nullptr;
  return std::unique_ptr<Communicator>(new MeteredCommunicator(std::move(other), counters_));
}

}  // namespace droptest::comm
