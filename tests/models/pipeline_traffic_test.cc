// SPDX-License-Identifier: Apache-2.0
// The ordinals of the messages between stages, on each link.
#include "models/gpt2/pipeline_traffic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/pipeline/pipeline_program.h"
#include "models/pipeline/schedule.h"

namespace droptest::models::pipeline_traffic_test {
namespace {

using enum ScheduleKind;
using LinkOf = std::tuple<sim::TrafficClass, int, int>;  // source and destination
using Numbered = std::map<std::string, std::uint64_t>;   // ordinal by name and step

/// Records messages instead of sending them.
class Notes final : public comm::Communicator {
 public:
  explicit Notes(int rank) : rank_(rank) {}

  std::string step;
  std::map<LinkOf, Numbered> sent;
  std::map<LinkOf, std::vector<std::uint64_t>> in_order;  ///< ordinals in the order of the sends
  std::map<LinkOf, Numbered> received;

  int rank() const override { return rank_; }
  int world_size() const override { return 64; }
  int world_rank(int rank) const override { return rank; }
  std::string_view backend() const override { return "notes"; }
  void run(const comm::CallArguments& call) override {
    const comm::Message& message = call.message;
    if (call.operation == comm::Operation::kRecv) {
      return note(received[{message.traffic_class, call.peer, rank_}], message);
    }
    ASSERT_EQ(call.operation, comm::Operation::kSend) << "a pipeline has messages alone";
    const LinkOf link{message.traffic_class, rank_, call.peer};
    note(sent[link], message);
    in_order[link].push_back(message.ordinal.value());
  }
  std::unique_ptr<comm::Communicator> split(int, int) override { return nullptr; }
  void abort(std::string_view) noexcept override {}

 private:
  void note(Numbered& numbered, const comm::Message& message) const {
    EXPECT_TRUE(numbered.emplace(step + std::string(message.name), message.ordinal.value()).second) << message.name;
  }
  int rank_;
};

struct Traffic {
  std::map<LinkOf, Numbered> sent;
  std::map<LinkOf, std::vector<std::uint64_t>> in_order;
};

/// The messages of all ranks in steps with all micro-batches of the schedule. Checks that both ends of a link give each
/// message the same ordinal.
Traffic traffic_of(const PipelineSchedule& schedule, int steps, const SentPast& sent_past = {}) {
  const PipelineProgram program = make_program(schedule, sent_past);
  Traffic all;
  std::map<LinkOf, Numbered> received;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    Notes notes(static_cast<int>(rank));
    PipelineTraffic traffic(notes, program);
    std::vector<float> data(4);
    for (int step = 0; step < steps; ++step) {
      notes.step = "step " + std::to_string(step) + " ";
      traffic.begin_step(schedule.micro_batches());
      for (const PipelineStep& one : program.ranks[rank]) {
        if (one.kind == PipelineStep::Kind::kReceive) traffic.start_receive(one, comm::Tensor(std::span(data)));
        if (one.kind == PipelineStep::Kind::kSend) traffic.start_send(one, comm::Tensor(std::span(data)));
        if (one.kind == PipelineStep::Kind::kCompute) traffic.finish_receive(one.action);
      }
      traffic.finish();
    }
    all.sent.merge(notes.sent);
    all.in_order.merge(notes.in_order);
    received.merge(notes.received);
  }
  EXPECT_EQ(all.sent, received);
  return all;
}

std::vector<PipelineSchedule> schedules() {
  return {make_schedule(kGpipe, 2, 1, 3),       make_schedule(kOneForwardOneBackward, 4, 1, 6),
          make_schedule(kInterleaved, 2, 2, 4), make_schedule(kInterleaved, 3, 3, 6),
          make_schedule(kZeroBubble, 2, 2, 4),  make_schedule(kRoundRobin, 4, 2, 8)};
}

constexpr std::uint64_t kPast = std::uint64_t{1} << 30U;

TEST(PipelineTraffic, TheOrdinalsOfALinkHaveNoGaps) {
  for (const PipelineSchedule& schedule : schedules()) {
    for (const SentPast& sent_past : {SentPast{}, SentPast{true, true}}) {
      for (auto& [link, ordinals] : traffic_of(schedule, 3, sent_past).in_order) {
        std::vector<std::uint64_t> sorted = ordinals;
        std::ranges::sort(sorted);
        const auto past = std::ranges::lower_bound(sorted, kPast);
        std::vector<std::uint64_t> expected(sorted.size());
        std::iota(expected.begin(), expected.begin() + (past - sorted.begin()), 0U);
        std::iota(expected.begin() + (past - sorted.begin()), expected.end(), kPast);
        EXPECT_EQ(sorted, expected);
      }
    }
  }
}

// Two ranks with four stages: each link has the boundaries of two pairs of stages, in the order of the chunks.
TEST(PipelineTraffic, AnInterleavedScheduleSendsItsOrdinalsOutOfOrder) {
  const Traffic traffic = traffic_of(make_schedule(kInterleaved, 2, 2, 4), 1);
  EXPECT_EQ(traffic.in_order.at({sim::TrafficClass::kPpActivation, 0, 1}),
            (std::vector<std::uint64_t>{0, 2, 1, 3, 4, 6, 5, 7}));
}

TEST(PipelineTraffic, SchedulesOfOnePlacementHaveTheSameOrdinals) {
  const Traffic interleaved = traffic_of(make_schedule(kInterleaved, 2, 2, 4), 2);
  EXPECT_EQ(traffic_of(make_schedule(kRoundRobin, 2, 2, 4), 2).sent, interleaved.sent);
  EXPECT_EQ(traffic_of(make_schedule(kZeroBubble, 2, 2, 4), 2).sent, interleaved.sent);
}

TEST(PipelineTraffic, ResultsKeepTheirOrdinalsWhereInputsAreSentPastAStage) {
  for (const PipelineSchedule& schedule : schedules()) {
    const Traffic with = traffic_of(schedule, 2, {true, true});
    for (const auto& [link, numbered] : traffic_of(schedule, 2).sent) {
      for (const auto& [name, ordinal] : numbered) EXPECT_EQ(with.sent.at(link).at(name), ordinal) << name;
    }
  }
}

TEST(PipelineTraffic, EvaluationsHaveOrdinalsOfTheirOwn) {
  const PipelineProgram program = make_program(make_schedule(kInterleaved, 2, 2, 4));
  Notes notes(0);
  PipelineTraffic traffic(notes, program);
  std::vector<float> data(4);
  const auto send = [&](int stage, int micro_batch) {
    const Action action{stage, Action::Kind::kForward, micro_batch};
    traffic.start_send({PipelineStep::Kind::kSend, action, 1}, comm::Tensor(std::span(data)));
    traffic.finish();
  };
  for (int round = 0; round < 3; ++round) {
    notes.step = "evaluation " + std::to_string(round) + " ";
    traffic.begin_evaluation();
    for (const int stage : {0, 2}) send(stage, 0);
    notes.step = "step " + std::to_string(round) + " ";
    traffic.begin_step(1);
    for (const int stage : {0, 2}) send(stage, 0);
  }
  constexpr std::uint64_t kEvaluation = std::uint64_t{1} << 29U;
  EXPECT_EQ(notes.in_order.at({sim::TrafficClass::kPpActivation, 0, 1}),
            (std::vector<std::uint64_t>{kEvaluation, kEvaluation + 1, 0, 1, kEvaluation + 2, kEvaluation + 3, 2, 3,
                                        kEvaluation + 4, kEvaluation + 5, 4, 5}));
}

}  // namespace
}  // namespace droptest::models::pipeline_traffic_test
