// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/started_programs.h"

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/comm/conformance.h"

namespace droptest::comm {
namespace {

using Counts = std::vector<std::uint64_t>;

std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL + b * 0xbf58476d1ce4e5b9ULL + c * 0x94d049bb133111ebULL + d;
  x ^= x >> 29;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ x >> 32;
}

// Small messages, some empty, and a few that no backend sends in one piece.
std::uint64_t count_of(std::uint64_t program, std::uint64_t call, int from, int to) {
  const std::uint64_t x = mix(program, call, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to) + 77);
  return x % 41 == 0 ? 17000 + x % 1000 : x % 90;
}

// Whole numbers in every other program.
bool adds_up_in_any_order(std::uint64_t program) { return program % 2 == 1; }

std::vector<float> values_of(std::uint64_t program, std::uint64_t call, int rank, std::uint64_t count) {
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t x = mix(program, call, static_cast<std::uint64_t>(rank) + 1, i);
    values[i] = adds_up_in_any_order(program)
                    ? static_cast<float>(x >> 54)
                    : (static_cast<float>(x >> 40) / 16777216.0F - 0.5F) * static_cast<float>(1 << (x & 7));
  }
  return values;
}

std::uint64_t sum_of(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}); }

// One call of a program, with its buffers.
class ProgramCall {
 public:
  ProgramCall(Communicator& group, std::uint64_t program, std::uint64_t call, std::uint64_t draw,
              sim::TrafficClass traffic_class, Program of)
      : group_(group),
        kind_(draw % (of == Program::kCollectives ? 5 : 6)),
        name_("c" + std::to_string(call)),
        message_{traffic_class, name_, static_cast<int>(call % 3)},
        op_(std::array{ReduceOp::kMax, ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kSum}[draw / 6 % 4]) {
    const int size = group.world_size();
    const int me = group.rank();
    const int world_me = group.world_rank(me);
    // The groups of even and of odd ranks have separate programs.
    const auto of_group = program * 8 + static_cast<std::uint64_t>(group.world_rank(0));
    in_place_ = kind_ == 1 || (kind_ == 4 && op_ == ReduceOp::kMax);
    for (int r = 0; r < size; ++r) {
      const bool symmetric = in_place_ && r > me;
      send_counts_.push_back(count_of(of_group, call, symmetric ? r : me, symmetric ? me : r));
      counts_.push_back(in_place_ && kind_ == 4 ? send_counts_.back()
                                                : count_of(of_group, call, r, kind_ == 4 ? me : 0));
    }
    source_ = static_cast<int>(draw / 24 % static_cast<std::uint64_t>(size));
    destination_ = static_cast<int>(draw / 24 / 16 % static_cast<std::uint64_t>(size));
    switch (kind_) {
      case 0:
      case 1:
        input_ = values_of(program, call, world_me, counts_[0]);
        output_.resize(counts_[0], 0.25F);
        break;
      case 2:
        input_ = values_of(program, call, world_me, sum_of(counts_));
        output_.resize(counts_[static_cast<std::size_t>(me)], 0.25F);
        break;
      case 3:
        input_ = values_of(program, call, world_me, counts_[static_cast<std::size_t>(me)]);
        output_.resize(sum_of(counts_), 0.25F);
        break;
      case 4:
        input_ = values_of(program, call, world_me, sum_of(send_counts_));
        output_.resize(sum_of(counts_), 0.25F);
        break;
      default:
        if (me == source_) input_ = values_of(program, call, world_me, counts_[0]);
        if (me == destination_) output_.resize(counts_[0], 0.25F);
    }
    if (in_place_) output_ = input_;
  }

  void run() {
    switch (kind_) {
      case 0:
      case 1:
        return group_.all_reduce(input(), output(), op_, message_);
      case 2:
        return group_.reduce_scatter(input(), output(), counts_, op_, message_);
      case 3:
        return group_.all_gather(input(), output(), counts_, message_);
      case 4:
        return group_.all_to_all(input(), send_counts_, output(), counts_, message_);
      default:
        if (group_.rank() == source_) group_.send(input(), destination_, message_);
        if (group_.rank() == destination_) group_.recv(output(), source_, message_);
    }
  }

  void start(std::deque<Work>& works) {
    switch (kind_) {
      case 0:
      case 1:
        works.push_back(group_.start_all_reduce(input(), output(), op_, message_));
        break;
      case 2:
        works.push_back(group_.start_reduce_scatter(input(), output(), counts_, op_, message_));
        break;
      case 3:
        works.push_back(group_.start_all_gather(input(), output(), counts_, message_));
        break;
      case 4:
        works.push_back(group_.start_all_to_all(input(), send_counts_, output(), counts_, message_));
        break;
      default:
        // The receive starts first, because no start depends on calls of the peers.
        if (group_.rank() == destination_) works.push_back(group_.start_recv(output(), source_, message_));
        if (group_.rank() == source_) works.push_back(group_.start_send(input(), destination_, message_));
    }
  }

  bool is_collective() const { return kind_ != 5; }

  void append_output(std::vector<std::byte>& bytes) const {
    const auto elems = std::as_bytes(std::span(output_));
    bytes.insert(bytes.end(), elems.begin(), elems.end());
  }

 private:
  ConstTensor input() const { return ConstTensor(std::span<const float>(in_place_ ? output_ : input_)); }
  Tensor output() { return Tensor(std::span<float>(output_)); }

  Communicator& group_;
  std::uint64_t kind_;
  std::string name_;
  Message message_;
  ReduceOp op_;
  bool in_place_ = false;
  Counts counts_;  // elements of each rank's part, or of its message to this rank
  Counts send_counts_;
  int source_ = 0;
  int destination_ = 0;
  std::vector<float> input_;
  std::vector<float> output_;
};

}  // namespace

ProgramGroups::ProgramGroups(Communicator& world)
    : world_(world), part_(world.split(world.rank() % 2, 0)), reversed_(world.split(0, -world.rank())) {}

Communicator& ProgramGroups::group(std::uint64_t number) const {
  if (number % 3 == 0) return world_;
  return number % 3 == 1 ? *part_ : *reversed_;
}

std::vector<std::byte> run_started_program(const ProgramGroups& groups, std::uint64_t number,
                                           sim::TrafficClass traffic_class, Calls calls, Program of) {
  std::mt19937_64 program(number);
  std::mt19937_64 order(number * 64 + static_cast<std::uint64_t>(groups.group(0).rank()) + 1);
  const std::uint64_t length = 2 + program() % 9;
  std::deque<ProgramCall> buffers;
  std::deque<Work> works;
  const auto finish_one = [&] {
    const auto at = works.begin() + static_cast<std::ptrdiff_t>(order() % works.size());
    Work work = std::move(*at);
    works.erase(at);
    if (order() % 8 != 0) work.wait();
  };
  for (std::uint64_t call = 0; call < length; ++call) {
    Communicator& group = groups.group(program());
    buffers.emplace_back(group, number, call, program() >> 8, traffic_class, of);
    const bool blocks = program() % 5 == 0;  // a blocking call may come while works are under way
    if (calls == Calls::kBlocking || blocks) {
      buffers.back().run();
      continue;
    }
    buffers.back().start(works);
    if (!works.empty() && order() % 4 == 0) works[order() % works.size()].done();
    while (!works.empty() && order() % 3 == 0) finish_one();
  }
  while (!works.empty()) finish_one();
  std::vector<std::byte> bytes;
  for (const ProgramCall& call : buffers) call.append_output(bytes);
  return bytes;
}

std::vector<std::byte> run_program_with_common_waits(const ProgramGroups& groups, std::uint64_t number,
                                                     sim::TrafficClass traffic_class, Calls calls,
                                                     const std::function<void(std::uint64_t)>& before) {
  struct Started {
    Work work;
    std::uint64_t call;
    bool is_collective;
  };
  std::mt19937_64 program(number);
  std::mt19937_64 order(number * 64 + static_cast<std::uint64_t>(groups.group(0).rank()) + 1);
  const std::uint64_t length = 2 + program() % 9;
  std::deque<ProgramCall> buffers;
  std::vector<Started> works;
  const auto wait_for = [&](std::uint64_t end) {
    std::ranges::shuffle(works, order);
    std::erase_if(works, [&](Started& started) {
      const bool is_wanted = started.is_collective ? started.call < end : order() % 2 == 0;
      if (is_wanted && order() % 8 != 0) started.work.wait();
      return is_wanted;
    });
  };
  for (std::uint64_t call = 0; call < length; ++call) {
    Communicator& group = groups.group(program());
    buffers.emplace_back(group, number, call, program() >> 8, traffic_class, Program::kAnyCalls);
    const bool blocks = program() % 5 == 0;
    const bool waits = program() % 3 == 0;
    const std::uint64_t end = program() % (call + 2);
    before(call);
    if (calls == Calls::kBlocking || blocks) {
      if (buffers.back().is_collective()) wait_for(call);
      buffers.back().run();
      continue;
    }
    std::deque<Work> started;
    buffers.back().start(started);
    for (Work& work : started) works.push_back({std::move(work), call, buffers.back().is_collective()});
    if (!works.empty() && order() % 4 == 0) works[order() % works.size()].work.done();
    if (waits) wait_for(end);
  }
  while (!works.empty()) wait_for(length);
  std::vector<std::byte> bytes;
  for (const ProgramCall& call : buffers) call.append_output(bytes);
  return bytes;
}

std::uint64_t check_started_programs(Communicator& communicator, std::uint64_t first, std::uint64_t end,
                                     std::uint64_t step, Program of) {
  const ProgramGroups groups(communicator);
  std::uint64_t digest = 0;
  for (std::uint64_t number = first; number < end; number += step) {
    const auto blocking = run_started_program(groups, number, sim::TrafficClass::kDpGradient, Calls::kBlocking, of);
    const auto started = run_started_program(groups, number, sim::TrafficClass::kDpGradient, Calls::kStarted, of);
    if (blocking != started) {
      throw std::runtime_error("program " + std::to_string(number) + ": rank " + std::to_string(communicator.rank()) +
                               ": started calls give other results than blocking ones");
    }
    for (const std::byte byte : started) digest = (digest ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ULL;
  }
  return digest;
}

void check_waits_need_starts_alone(Communicator& communicator, std::atomic<int>& waits) {
  constexpr int kGivenUp = 1000;
  const int me = communicator.rank();
  int works = 0;
  const auto wait_second = [&](Work work) {
    ++works;
    for (int seen = waits; me == 1 && seen < works; seen = waits) waits.wait(seen);
    try {
      work.wait();
      if (me == 0) ++waits;
    } catch (...) {
      waits = kGivenUp;
      waits.notify_all();
      throw;
    }
    waits.notify_all();
  };
  const auto expect = [](const std::vector<float>& got, const std::vector<float>& want, const char* what) {
    if (got != want) throw std::runtime_error(std::string(what) + " of " + std::to_string(got.size()) + " is wrong");
  };
  for (const std::size_t part : {std::size_t{4}, std::size_t{50000}, kLargeMessageBytes / sizeof(float) / 4}) {
    const std::vector<std::uint64_t> counts{part, part};
    const Message message{sim::TrafficClass::kDpGradient, "m", 0};
    const std::vector<float> mine(2 * part, static_cast<float>(me + 1));
    const ConstTensor all{std::span<const float>(mine)};
    const ConstTensor half{std::span<const float>(mine).first(part)};
    std::vector<float> whole(2 * part);
    std::vector<float> shard(part);
    const Tensor to_whole{std::span(whole)};
    const Tensor to_shard{std::span(shard)};
    std::vector<float> both(2 * part, 1);
    std::fill(both.begin() + static_cast<std::ptrdiff_t>(part), both.end(), 2.0F);
    wait_second(communicator.start_all_reduce(all, to_whole, ReduceOp::kSum, message));
    expect(whole, std::vector<float>(2 * part, 3), "all_reduce");
    wait_second(communicator.start_reduce_scatter(all, to_shard, counts, ReduceOp::kSum, message));
    expect(shard, std::vector<float>(part, 3), "reduce_scatter");
    wait_second(communicator.start_all_gather(half, to_whole, counts, message));
    expect(whole, both, "all_gather");
    std::ranges::fill(whole, 0.0F);
    wait_second(communicator.start_all_to_all(all, counts, to_whole, counts, message));
    expect(whole, both, "all_to_all");
    for (const int source : {0, 1}) {
      wait_second(me == source ? communicator.start_send(half, 1 - source, message)
                               : communicator.start_recv(to_shard, source, message));
      if (me != source) expect(shard, std::vector<float>(part, static_cast<float>(source + 1)), "message");
    }
  }
}

std::uint64_t check_started_programs(Communicator& communicator) {
  return check_started_programs(communicator, 0, 40, 1);
}

std::uint64_t check_started_programs_of_any_order(Communicator& communicator) {
  return check_started_programs(communicator, 1, 60, 2, Program::kCollectives);
}

}  // namespace droptest::comm
