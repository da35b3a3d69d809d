// SPDX-License-Identifier: Apache-2.0
// One rank of the `gloo` backend as a separate process, for tests that kill ranks (rank_program.h).
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/gloo/gloo_mesh.h"
#include "tests/comm/conformance.h"
#include "tests/comm/rank_program.h"
#include "tests/comm/started_programs.h"
#include "tests/comm/turn_clock.h"

namespace droptest::comm {
namespace {

constexpr std::uint64_t kFailingStep = 3;

void all_reduce(Communicator& communicator, std::size_t count_elems) {
  std::vector<float> data(count_elems, 1.0F);
  communicator.all_reduce(std::span(data), ReduceOp::kSum, {.name = "grad.wte"});
}

// Collectives of all ranks; the culprit fails between two of them.
void fail_in_world(Communicator& communicator, TurnClock& clock, int culprit, std::string_view how,
                   std::size_t count_elems) {
  for (std::uint64_t step = 0; step < 10; ++step) {
    communicator.begin_step(step);
    if (step == kFailingStep && communicator.rank() == culprit) {
      if (how == "leave") return;
      misbehave(clock, how);
    }
    all_reduce(communicator, count_elems);
  }
}

// Each rank sends to the next one and receives from the one before it.
void exchange_with_neighbours(Communicator& communicator, std::size_t count_sent, std::size_t count_received) {
  const int n = communicator.world_size();
  std::vector<float> sent(count_sent, 1.0F);
  std::vector<float> received(count_received);
  const Message message{.name = "activation"};
  const Send send{std::span<const float>(sent), (communicator.rank() + 1) % n, message};
  const Receive receive{std::span(received), (communicator.rank() + n - 1) % n, message};
  communicator.exchange({&send, 1}, {&receive, 1});
}

void fail_in_exchanges(Communicator& communicator, TurnClock& clock, int culprit, std::string_view how) {
  for (std::uint64_t step = 0; step < 10; ++step) {
    communicator.begin_step(step);
    if (step == kFailingStep && communicator.rank() == culprit) {
      if (how == "leave") return;
      misbehave(clock, how);
    }
    exchange_with_neighbours(communicator, 1'000'000, 1'000'000);
  }
}

// Each rank waits for the next one, and the last one fails: only its neighbour communicates with it.
void fail_at_the_end_of_a_chain(Communicator& communicator, TurnClock& clock, std::string_view how) {
  communicator.barrier({.name = "start"});
  const int next = communicator.rank() + 1;
  float value = 0;
  if (next == communicator.world_size()) {
    misbehave(clock, how);
    return;
  }
  // Those farthest from the culprit wait first, so that they are the first to time out.
  clock.sleep_for(std::chrono::milliseconds(50) * communicator.rank());
  communicator.recv(std::span(&value, 1), next, {.name = "activation"});
  if (communicator.rank() > 0) {
    communicator.send(std::span(&value, 1), communicator.rank() - 1, {.name = "activation"});
  }
}

// Even and odd ranks continue in separate groups; the culprit belongs to only one of them.
void fail_in_a_part(Communicator& communicator, TurnClock& clock, int culprit, std::string_view how) {
  const auto part = communicator.split(communicator.rank() % 2, 0);
  for (std::uint64_t step = 0;; ++step) {
    communicator.begin_step(step);
    if (step == kFailingStep && communicator.rank() == culprit) misbehave(clock, how);
    all_reduce(*part, 10);
    clock.sleep_for(std::chrono::milliseconds(20));
  }
}

void disagree(Communicator& communicator, int culprit, std::string_view what) {
  std::vector<float> data(12, 1.0F);
  const auto n = static_cast<std::uint64_t>(communicator.world_size());
  if (what == "exchange_count") {
    exchange_with_neighbours(communicator, 1'000'000, communicator.rank() == culprit ? 999'999 : 1'000'000);
    return communicator.barrier({.name = "after"});
  }
  if (what == "exchange_recv") {
    if (communicator.rank() != culprit) return exchange_with_neighbours(communicator, 12, 12);
    return communicator.recv(std::span(data), culprit - 1, {.name = "activation"});
  }
  if (communicator.rank() != culprit) {
    if (what == "all_to_all") {
      const std::vector<std::uint64_t> counts(n, 2);
      std::vector<float> output(2 * n);
      communicator.all_to_all(std::span(data).first(2 * n), counts, std::span(output), counts, {.name = "tokens"});
    } else {
      communicator.all_reduce(std::span(data), ReduceOp::kSum, {.name = "grad.wte"});
    }
    return communicator.barrier({.name = "after"});
  }
  if (what == "operation") return communicator.barrier({.name = "grad.wte"});
  if (what == "count") return all_reduce(communicator, 11);
  if (what == "name") return communicator.all_reduce(std::span(data), ReduceOp::kSum, {.name = "grad.wpe"});
  const std::vector<std::uint64_t> send(n, 2);
  const std::vector<std::uint64_t> receive(n, 3);
  std::vector<float> output(3 * n);
  communicator.all_to_all(std::span(data).first(2 * n), send, std::span(output), receive, {.name = "tokens"});
}

// A message larger than the buffers to a rank that receives it late, and a last message to a rank that reads it after
// the sender has left.
std::uint64_t send_much(Communicator& communicator, const TurnClock& clock) {
  constexpr std::size_t kElems = 3'000'000;  // 12 MB
  std::vector<float> data(kElems);
  if (communicator.rank() == 0) {
    for (int i = 0; i < 4; ++i) {
      data.assign(kElems, static_cast<float>(i));
      communicator.send(std::span(data), 1, {.name = "much"});
    }
    return 0;
  }
  if (communicator.rank() == 1) {
    clock.sleep_for(std::chrono::milliseconds(300));
    for (int i = 0; i < 4; ++i) {
      communicator.recv(std::span(data), 0, {.name = "much"});
      if (data.front() != static_cast<float>(i) || data.back() != static_cast<float>(i)) {
        throw std::runtime_error("messages out of order");
      }
    }
  }
  return 0;
}

bool stands_still(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  return text.find(") T") != std::string::npos;
}

// Rank 1 takes bytes that it asked for only after rank 0, which left them to the system, has gone.
void leave_with_bytes_on_their_way(const ProcessGroupOptions& options, TurnClock& clock) {
  constexpr std::size_t kBytes = 200'000;  // more than the receiver's system takes at once
  constexpr std::byte kValue{7};
  pid_t process = ::getpid();
  if (options.rank == 0) {
    {
      GlooMesh mesh(options);
      const GlooMesh::CallScope scope(mesh, {});
      auto from = mesh.start_receive(std::as_writable_bytes(std::span(&process, 1)), 1, 2);
      mesh.finish(from);
      while (!stands_still(process)) std::this_thread::yield();
      mesh.send_buffered(std::vector<std::byte>(kBytes, kValue), 1, 1);
    }
    ::kill(process, SIGCONT);
    return;
  }
  GlooMesh mesh(options);
  const GlooMesh::CallScope scope(mesh, {});
  std::vector<std::byte> bytes(kBytes);
  auto awaited = mesh.start_receive(bytes, 0, 1);
  auto own = mesh.start_send(std::as_bytes(std::span(&process, 1)), 0, 2);
  mesh.finish(own);
  clock.rest();
  ::raise(SIGSTOP);
  mesh.finish(awaited);
  if (std::ranges::count(bytes, kValue) != std::ptrdiff_t{kBytes}) throw std::runtime_error("bytes are missing");
}

std::uint64_t run(Communicator& communicator, TurnClock& clock, std::string_view scenario, int culprit) {
  const std::size_t colon = scenario.find(':');
  const std::string_view kind = scenario.substr(0, colon);
  const std::string_view how = colon == std::string_view::npos ? "" : scenario.substr(colon + 1);
  if (kind == "conformance") return check_conformance(communicator);
  if (kind == "started") return check_started_programs(communicator);
  if (kind == "splits") return check_conformance_of_splits(communicator);
  if (kind == "channels") return check_conformance_of_channels(communicator);
  if (kind == "message_sizes") return check_message_sizes(communicator);
  if (kind == "large_exchanges") return check_large_exchanges(communicator);
  if (kind == "send_much") return send_much(communicator, clock);
  if (kind == "world") fail_in_world(communicator, clock, culprit, how, 1000);
  if (kind == "large") fail_in_world(communicator, clock, culprit, how, 1'000'000);
  if (kind == "exchange") fail_in_exchanges(communicator, clock, culprit, how);
  if (kind == "chain") fail_at_the_end_of_a_chain(communicator, clock, how);
  if (kind == "part") fail_in_a_part(communicator, clock, culprit, how);
  if (kind == "disagree") disagree(communicator, culprit, how);
  return 0;
}

std::uint64_t rank_body(const ProcessGroupOptions& options, TurnClock& clock, const RankPart& part) {
  if (part.scenario == "leave_with_bytes_on_their_way") {
    leave_with_bytes_on_their_way(options, clock);
    return 0;
  }
  return with_communicator(
      options, [&](Communicator& communicator) { return run(communicator, clock, part.scenario, part.culprit); });
}

}  // namespace
}  // namespace droptest::comm

int main(int argc, char** argv) {
  return droptest::comm::rank_main({argv + 1, argv + argc}, droptest::comm::rank_body);
}
