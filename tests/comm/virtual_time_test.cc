// SPDX-License-Identifier: Apache-2.0
// The virtual clock of the lossy communicator: closed forms of each path, retransmission, deadlines, stragglers.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/lab/collective_experiment.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/timed_gilbert_elliott.h"
#include "sim/recovery/parity.h"
#include "sim/time/straggler.h"
#include "sim/time/timing_theory.h"
#include "tests/comm/observed_communicator.h"
#include "tests/comm/timed_network.h"

namespace droptest::comm::virtual_time_test {
namespace {

constexpr std::chrono::milliseconds kTimeout{20000};
const Message kMessage{kClass, "activation", 0};

float value_of(int rank, std::size_t i) { return std::sin(static_cast<float>(i) + static_cast<float>(rank)); }

struct Outcome {
  VirtualTime time;
  std::vector<std::vector<float>> data;  // data of each rank
};

// Runs `program` on each rank with its communicator and its data.
template <class Program>
Outcome run(int ranks, const LossyOptions& options, const Program& program) {
  Outcome outcome;
  outcome.data.resize(static_cast<std::size_t>(ranks));
  run_ranks(ranks, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    std::vector<float>& data = outcome.data[static_cast<std::size_t>(inner.rank())];
    data.resize(kElements);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = value_of(inner.rank(), i);
    program(lossy, data);
    lossy.verify_fates();
    const auto time = lossy.collect_time();
    if (inner.rank() == 0 && time) outcome.time = *time;
  });
  return outcome;
}

void all_reduce(LossyCommunicator& lossy, std::vector<float>& data) {
  lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
}

TEST(VirtualTime, AnAllReduceTakesWhatTheClosedFormSays) {
  constexpr double kBytes = kElements * sizeof(float);
  for (const int ranks : {2, 4, 8}) {
    EXPECT_NEAR(run(ranks, options_of("direct", 0.1, model_of()), all_reduce).time.seconds,
                sim::direct_all_reduce_seconds(ranks, kBytes, kLink), 1e-12);
    EXPECT_NEAR(run(ranks, options_of("contribution", 0.1, model_of()), all_reduce).time.seconds,
                sim::aggregation_seconds(kBytes, kLink), 1e-12);
  }
}

TEST(VirtualTime, HeadersTravelToo) {
  TimeModel model = model_of();
  model.header_bytes = 64;
  // 256 bytes of payload and 64 of headers.
  EXPECT_NEAR(run(4, options_of("direct", 0, model), all_reduce).time.seconds,
              sim::direct_all_reduce_seconds(4, kElements * sizeof(float) * 1.25, kLink), 1e-12);
}

TEST(VirtualTime, EveryCollectiveTakesItsHops) {
  const double transfer = kLink.transfer_seconds(kElements * sizeof(float));
  const LossyOptions options = options_of("direct", 0, model_of());
  const std::vector<std::uint64_t> quarters(4, kElements / 4);
  const auto seconds = [&](const auto& program) { return run(4, options, program).time.seconds; };
  EXPECT_NEAR(seconds([&](LossyCommunicator& lossy, std::vector<float>& data) {
                std::vector<float> part(kElements / 4);
                lossy.reduce_scatter(ConstTensor(std::span<const float>(data)), Tensor(std::span(part)), quarters,
                                     ReduceOp::kSum, kMessage);
              }),
              kLink.latency_seconds + 0.75 * transfer, 1e-12);
  EXPECT_NEAR(seconds([&](LossyCommunicator& lossy, std::vector<float>& data) {
                const std::vector<float> part(kElements / 4);
                lossy.all_gather(ConstTensor(std::span<const float>(part)), Tensor(std::span(data)), quarters,
                                 kMessage);
              }),
              kLink.latency_seconds + 0.75 * transfer, 1e-12);
  EXPECT_NEAR(seconds([&](LossyCommunicator& lossy, std::vector<float>& data) {
                std::vector<float> received(kElements);
                lossy.all_to_all(ConstTensor(std::span<const float>(data)), quarters, Tensor(std::span(received)),
                                 quarters, kMessage);
              }),
              kLink.latency_seconds + 0.75 * transfer, 1e-12);
  // The root sends three times, one after the other.
  EXPECT_NEAR(seconds([&](LossyCommunicator& lossy, std::vector<float>& data) {
                lossy.broadcast(Tensor(std::span(data)), 1, kMessage);
              }),
              kLink.latency_seconds + 3 * transfer, 1e-12);
  EXPECT_NEAR(seconds([&](LossyCommunicator& lossy, std::vector<float>& data) {
                if (lossy.rank() == 2) lossy.send(ConstTensor(std::span<const float>(data)), 3, kMessage);
                if (lossy.rank() == 3) lossy.recv(Tensor(std::span(data)), 2, kMessage);
              }),
              kLink.latency_seconds + transfer, 1e-12);
}

TEST(VirtualTime, StepsTakeTheirComputeTimeAndTheSlowestRankSetsThePace) {
  TimeModel model = model_of(0.25);
  const auto two_steps = [](LossyCommunicator& lossy, std::vector<float>& data) {
    for (const std::uint64_t step : {1, 2}) {
      lossy.begin_step(step);
      all_reduce(lossy, data);
    }
  };
  const double collective = sim::direct_all_reduce_seconds(4, kElements * sizeof(float), kLink);
  VirtualTime time = run(4, options_of("direct", 0, model), two_steps).time;
  EXPECT_NEAR(time.seconds, 2 * (0.25 + collective), 1e-12);
  EXPECT_NEAR(time.compute_seconds, 0.5, 1e-12);

  model.compute_p99_over_p50 = 2;
  const sim::Straggler straggler(2);
  double slowest = 0;
  for (const std::uint64_t step : {1, 2}) {
    double factor = 0;
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
      factor = std::max(factor, straggler.factor(11, sim::Purpose::kComputeStraggler, rank, step));
    }
    slowest += 0.25 * factor;
  }
  time = run(4, options_of("direct", 0, model), two_steps).time;
  EXPECT_GE(time.seconds, slowest);
  EXPECT_LE(time.seconds, slowest + 2 * collective + 1e-12);
}

TEST(VirtualTime, MeasuredComputeIsTheProcessorTimeBetweenCollectives) {
  TimeModel model = model_of();
  model.compute_seconds.reset();
  const VirtualTime time =
      run(2, options_of("direct", 0, model), [](LossyCommunicator& lossy, std::vector<float>& data) {
        lossy.begin_step(1);
        volatile double work = 1;
        for (int i = 0; i < 3'000'000; ++i) work = work * 1.0000001;
        all_reduce(lossy, data);
        all_reduce(lossy, data);
      }).time;
  EXPECT_GT(time.compute_seconds, 1e-3);
  const double collective = sim::direct_all_reduce_seconds(2, kElements * sizeof(float), kLink);
  EXPECT_GE(time.seconds, 2 * collective + time.compute_seconds);
}

TEST(VirtualTime, AReliableNetworkLosesNothingButTime) {
  const auto ten = [](LossyCommunicator& lossy, std::vector<float>& data) {
    for (int i = 0; i < 10; ++i) all_reduce(lossy, data);
  };
  const auto reliable = [](const std::string& path) {
    LossyOptions options = options_of(path, 0.05, model_of());
    apply_recovery(*options.network.of(kClass), protocol("selective_repeat"));
    return options;
  };
  for (const std::string path : {"direct", "contribution"}) {
    const Outcome lossless = run(4, options_of(path, 0, model_of()), ten);
    const Outcome repeated = run(4, reliable(path), ten);
    EXPECT_EQ(repeated.data, lossless.data) << path;
    EXPECT_GT(repeated.time.seconds, lossless.time.seconds) << path;
    EXPECT_EQ(repeated.time.packets, lossless.time.packets) << path;
    EXPECT_EQ(lossless.time.repeated, 0U) << path;
  }
  // 12 hops of a half, 2 halves, 32 packets a hop, 10 calls: transmissions are geometric.
  const VirtualTime time = run(4, reliable("direct"), ten).time;
  constexpr double kPackets = 12 * 2 * 32 * 10;
  EXPECT_EQ(time.packets, static_cast<std::uint64_t>(kPackets));
  const double expected = kPackets * 0.05 / 0.95;
  EXPECT_LT(std::abs(static_cast<double>(time.repeated) - expected), 4 * std::sqrt(kPackets * 0.05) / 0.95);
  // The slots of a link continue from call to call, so two calls need not cost the same.
  const VirtualTime once = run(4, reliable("direct"), all_reduce).time;
  EXPECT_NE(time.repeated, 10 * once.repeated);
}

TEST(VirtualTime, OneHopTakesItsExpectedTime) {
  // A message over one link, and the next one back: the mean over many is the protocol's closed form.
  for (const std::string name : {"selective_repeat", "go_back_n"}) {
    const auto made = protocol(name);
    LossyOptions options = options_of("direct", 0.02, model_of());
    apply_recovery(*options.network.of(kClass), made);
    constexpr int kCalls = 400;
    const VirtualTime time = run(2, options, [](LossyCommunicator& lossy, std::vector<float>& data) {
                               for (int i = 0; i < kCalls; ++i) {
                                 if (lossy.rank() == i % 2) {
                                   lossy.send(ConstTensor(std::span<const float>(data)), 1 - i % 2, kMessage);
                                 } else {
                                   lossy.recv(Tensor(std::span(data)), i % 2, kMessage);
                                 }
                               }
                             }).time;
    const sim::LinkTiming timing{kLink.transfer_seconds(256), kLink.round_trip_seconds()};
    const double transfer = kLink.transfer_seconds(kElements * sizeof(float));
    const double extra = made->expected_extra_seconds(0.02, kElements * sizeof(float) / 256, timing);
    const double measured = time.seconds / kCalls - transfer - kLink.latency_seconds;
    EXPECT_NEAR(measured / extra, 1, 0.2) << name;
  }
}

// Message after message from one rank to another: only packets take time of the ports. All have arrived when the last
// packet, and what then is repeated, has come.
TEST(VirtualTime, AMessageThatWaitsForItsRepetitionsHoldsNoPort) {
  LossyOptions options = options_of("direct", 0.05, model_of());
  apply_recovery(*options.network.of(kClass), protocol("selective_repeat"));
  constexpr int kCalls = 50;
  const VirtualTime time = run(2, options, [](LossyCommunicator& lossy, std::vector<float>& data) {
                             for (int i = 0; i < kCalls; ++i) {
                               if (lossy.rank() == 0) {
                                 lossy.send(ConstTensor(std::span<const float>(data)), 1, kMessage);
                               } else {
                                 lossy.recv(Tensor(std::span(data)), 0, kMessage);
                               }
                             }
                           }).time;
  const double packets = kCalls * kElements * sizeof(float) / 256 + static_cast<double>(time.repeated);
  const double wire = kLink.latency_seconds + kLink.transfer_seconds(packets * 256);
  EXPECT_GT(time.timeouts, kCalls / 2U) << "so many waits of a round trip";
  EXPECT_GE(time.seconds, wire - 1e-9);
  EXPECT_LE(time.seconds, wire + 4 * kLink.round_trip_seconds());
}

TEST(VirtualTime, WhatMissesTheDeadlineIsLost) {
  const double whole = sim::direct_all_reduce_seconds(4, kElements * sizeof(float), kLink);
  TimeModel model = model_of();
  model.deadline_seconds = whole;
  const Outcome patient = run(4, options_of("direct", 0, model), all_reduce);
  const Outcome lossless = run(4, options_of("direct", 0, model_of()), all_reduce);
  EXPECT_EQ(patient.data, lossless.data);
  EXPECT_EQ(patient.time.late, 0U);
  EXPECT_EQ(patient.time.seconds, lossless.time.seconds);

  // A round ends before the third of its three hops has arrived.
  const double third = kLink.transfer_seconds(kElements / 4 * sizeof(float));
  model.deadline_seconds = kLink.latency_seconds + 2.5 * third;
  const Outcome hasty = run(4, options_of("direct", 0, model), all_reduce);
  EXPECT_NEAR(hasty.time.seconds, 2 * (kLink.latency_seconds + 2.5 * third), 1e-12);
  EXPECT_EQ(hasty.time.late, 4U * 2 * 16);  // the second half of the last message, for each rank and half
  EXPECT_NE(hasty.data, lossless.data);
  // Rank 0's own part lacks the second half of rank 1's contribution: its last sender.
  const std::size_t late_element = kElements / 4 - 1;
  EXPECT_FLOAT_EQ(hasty.data[0][late_element],
                  (value_of(0, late_element) + value_of(2, late_element)) + value_of(3, late_element));
  EXPECT_EQ(hasty.data[0][0], lossless.data[0][0]);
}

TEST(VirtualTime, SharedFatesShareTheDeadline) {
  TimeModel model = model_of();
  const double third = kLink.transfer_seconds(kElements / 4 * sizeof(float));
  model.deadline_seconds = kLink.latency_seconds + 2.5 * third;
  LossyOptions options = options_of("direct", 0, model);
  options.network.of(kClass)->consistency = Consistency::kShared;
  const Outcome shared = run(4, options, all_reduce);
  for (const auto& data : shared.data) EXPECT_EQ(data, shared.data[0]);
  const Outcome aggregated = run(4, options_of("contribution", 0, model), all_reduce);
  for (const auto& data : aggregated.data) EXPECT_EQ(data, aggregated.data[0]);
  EXPECT_GT(aggregated.time.late, 0U);
}

// Each receiver gets its own values, whatever a path does with the values that all ranks get.
TEST(VirtualTime, AllToAllHasADeadlineOnEveryPath) {
  const auto exchange = [](LossyCommunicator& lossy, std::vector<float>& data) {
    const std::vector<std::uint64_t> even(4, kElements / 4);
    lossy.all_to_all(ConstTensor(std::span<const float>(data)), even, Tensor(std::span(data)), even, kMessage);
  };
  TimeModel model = model_of();
  const double third = kLink.transfer_seconds(kElements / 4 * sizeof(float));
  model.deadline_seconds = kLink.latency_seconds + 2.5 * third;
  const Outcome direct = run(4, options_of("direct", 0, model), exchange);
  EXPECT_EQ(direct.time.late, 4U * 16);  // the second half of the last message, for each rank
  std::size_t zeros = 0;
  for (const auto& data : direct.data) zeros += static_cast<std::size_t>(std::ranges::count(data, 0.0F));
  EXPECT_EQ(zeros, 4U * kElements / 8 + 1);  // and the first element of rank 0, which is sin(0)
  LossyOptions shared = options_of("direct", 0, model);
  shared.network.of(kClass)->consistency = Consistency::kShared;
  for (const LossyOptions& options : {shared, options_of("contribution", 0, model), options_of("ring", 0, model)}) {
    const Outcome outcome = run(4, options, exchange);
    EXPECT_EQ(outcome.data, direct.data) << options.network.of(kClass)->path;
    EXPECT_EQ(outcome.time.late, direct.time.late);
  }
}

TEST(VirtualTime, StragglersStretchHopsAndADeadlineCutsTheTail) {
  const auto calls = [](LossyCommunicator& lossy, std::vector<float>& data) {
    for (int i = 0; i < 50; ++i) all_reduce(lossy, data);
  };
  const double plain = run(8, options_of("direct", 0, model_of()), calls).time.seconds;
  TimeModel model = model_of();
  model.transfer_p99_over_p50 = 3;
  const double stretched = run(8, options_of("direct", 0, model), calls).time.seconds;
  EXPECT_GT(stretched, 1.1 * plain);
  model.deadline_seconds = sim::direct_all_reduce_seconds(8, kElements * sizeof(float), kLink) / 2 * 1.05;
  const VirtualTime cut = run(8, options_of("direct", 0, model), calls).time;
  EXPECT_LT(cut.seconds, 1.06 * plain);
  EXPECT_GT(cut.late, 0U);
}

TEST(VirtualTime, NeitherEvaluationNorItsAbsenceChangesAnything) {
  const auto evaluate = [](LossyCommunicator& lossy, std::vector<float>& data) {
    const LossyCommunicator::LosslessScope scope(lossy);
    all_reduce(lossy, data);
  };
  EXPECT_EQ(run(2, options_of("direct", 0.1, model_of()), evaluate).time.seconds, 0);
  // The losses of a tolerant network are those without a clock.
  LossyOptions timed = options_of("direct", 0.1, model_of());
  const Outcome with = run(4, timed, all_reduce);
  timed.time.reset();
  EXPECT_EQ(run(4, timed, all_reduce).data, with.data);
}

TEST(VirtualTime, AStoppedClockLetsNoTimePassAndCountsNothing) {
  for (const auto deadline : {std::optional<double>(), std::optional<double>(2e-5)}) {
    LossyOptions options = options_of("direct", 0.1, model_of());
    options.time->deadline_seconds = deadline;
    const auto aside = [](LossyCommunicator& lossy, std::vector<float>& data) {
      all_reduce(lossy, data);
      const auto stop = lossy.stop_clock();
      all_reduce(lossy, data);
    };
    const Outcome stopped = run(2, options, aside);
    const Outcome once = run(2, options, all_reduce);
    EXPECT_EQ(stopped.time.seconds, once.time.seconds);
    EXPECT_EQ(stopped.time.packets, once.time.packets);
    EXPECT_NE(stopped.data, once.data) << "it is carried out, over the lossy network";
  }
}

TEST(VirtualTime, WhatWasStartedBeforeTheClockStopsTakesItsTime) {
  const LossyOptions options = options_of("direct", 0, model_of());
  const auto started = [](LossyCommunicator& lossy, std::vector<float>& data) {
    const Tensor all{std::span(data)};
    Work work = lossy.start_all_reduce(all, all, ReduceOp::kSum, kMessage);
    const auto stop = lossy.stop_clock();
    work.wait();
  };
  EXPECT_EQ(run(2, options, started).time.seconds, run(2, options, all_reduce).time.seconds);
}

TEST(VirtualTime, WhatIsProtectedIsSentOnce) {
  LossyOptions options = options_of("direct", 0.3, model_of());
  apply_recovery(*options.network.of(kClass), protocol("selective_repeat"));
  const auto messages = [](LossyCommunicator& lossy, std::vector<float>& data) {
    all_reduce(lossy, data);
    if (lossy.rank() == 0) lossy.send(ConstTensor(std::span<const float>(data)), 1, kMessage);
    if (lossy.rank() == 1) lossy.recv(Tensor(std::span(data)), 0, kMessage);
  };
  const VirtualTime lossless = run(2, options_of("direct", 0, model_of()), messages).time;
  EXPECT_GT(run(2, options, messages).time.repeated, 0U);
  options.network.of(kClass)->recovery.protect.layers = {kMessage.layer};
  const VirtualTime time = run(2, options, messages).time;
  EXPECT_EQ(time.seconds, lossless.seconds);
  EXPECT_EQ(time.repeated, 0U);
  EXPECT_EQ(time.packets, lossless.packets);
}

TEST(VirtualTime, GroupsOfARankShareItsClock) {
  const LossyOptions options = options_of("direct", 0, model_of());
  const double pair = sim::direct_all_reduce_seconds(2, kElements * sizeof(float), kLink);
  const double all = sim::direct_all_reduce_seconds(4, kElements * sizeof(float), kLink);
  const Outcome outcome = run(4, options, [](LossyCommunicator& lossy, std::vector<float>& data) {
    const auto half = lossy.split(lossy.rank() / 2, 0);
    // Two calls of one pair, one of the other; then all wait for the slower pair.
    for (int i = 0; i < 2 - lossy.rank() / 2; ++i) half->all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
    all_reduce(lossy, data);
  });
  EXPECT_NEAR(outcome.time.seconds, 2 * pair + all, 1e-12);
}

TEST(VirtualTime, SendsAndSharedResultsHaveTheTimeAtBothEnds) {
  sim::TimedRates rates;
  rates.mean_good_microseconds = 90;
  rates.mean_bad_microseconds = 30;
  rates.packet_microseconds = 0.25;
  LossyOptions options = options_of("direct", 0, model_of(3e-5));
  ClassNetwork& network = *options.network.of(kClass);
  network.reduce.loss = network.gather.loss = std::make_shared<sim::TimedGilbertElliott>(rates);
  for (const Consistency consistency : {Consistency::kPerReceiver, Consistency::kShared}) {
    network.consistency = consistency;
    // verify_fates() in run() compares the ends of every link.
    run(3, options, [](LossyCommunicator& lossy, std::vector<float>& data) {
      for (std::uint64_t step = 0; step < 40; ++step) {
        lossy.begin_step(step);
        all_reduce(lossy, data);
        lossy.broadcast(Tensor(std::span(data)), 1, kMessage);
        if (lossy.rank() == 2) lossy.send(ConstTensor(std::span<const float>(data)), 0, kMessage);
        if (lossy.rank() == 0) lossy.recv(Tensor(std::span(data)), 2, kMessage);
      }
    });
  }
}

// The processor's clock moves by two seconds between calls and by a thousand in each message of the backend.
TEST(VirtualTime, MeasuredComputeTimeIsWhatPassesBetweenTheCalls) {
  for (const std::uint64_t sample_every : {0, 1}) {
    run_ranks(2, kTimeout, [&](Communicator& backend) {
      double now = 0;
      ObservedCommunicator inner(backend, [&now](const Message&, std::size_t) { now += 1000; });
      LossyOptions options = options_of("direct", 0.1, model_of());
      options.time->compute_seconds.reset();
      options.time->thread_seconds = [&now] { return now; };
      options.sample_every_steps = sample_every;
      LossyCommunicator lossy(inner, options);
      now += 5;  // preparation
      lossy.begin_step(1);
      std::vector<float> data(64, 1.0F);
      const Message control{sim::TrafficClass::kControl, "norm"};
      const std::vector<std::uint64_t> even(2, 32);
      const std::vector<std::function<void()>> calls = {
          [&] { all_reduce(lossy, data); },
          [&] { lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, control); },
          [&] {
            std::vector<float> part(32);
            lossy.reduce_scatter(ConstTensor(std::span<const float>(data)), Tensor(std::span(part)), even,
                                 ReduceOp::kSum, control);
          },
          [&] {
            const std::vector<float> part(32, 1.0F);
            lossy.all_gather(ConstTensor(std::span(part)), Tensor(std::span(data)), even, control);
          },
          [&] {
            lossy.all_to_all(ConstTensor(std::span<const float>(data)), even, Tensor(std::span(data)), even, control);
          },
          [&] { lossy.broadcast(Tensor(std::span(data)), 0, control); },
          [&] {
            if (lossy.rank() == 0) lossy.send(ConstTensor(std::span<const float>(data)), 1, control);
            if (lossy.rank() == 1) lossy.recv(Tensor(std::span(data)), 0, control);
          },
          [&] {
            std::vector<float> received(64);
            const Send sent{ConstTensor(std::span<const float>(data)), 1 - lossy.rank(), control};
            const Receive taken{Tensor(std::span(received)), 1 - lossy.rank(), control};
            lossy.exchange(std::span(&sent, 1), std::span(&taken, 1));
          },
          [&] { lossy.barrier(control); },
          [&] { lossy.split(0, 0); },
          [&] { lossy.verify_fates(); },
          [&] { lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit); },
          [&] { lossy.take_samples(); },
          [&] { lossy.collect_time(); },
          [&] {
            const LossyCommunicator::LosslessScope evaluation(lossy);
            now += 1000;
          },
          [&] {
            const auto pause = lossy.pause_clock();
            now += 1000;
            lossy.barrier(control);
            now += 1000;
          },
      };
      double computed = 0;
      for (std::size_t i = 0; i < calls.size(); ++i) {
        now += 2;
        computed += 2;
        calls[i]();
        EXPECT_EQ(lossy.collect_time()->compute_seconds, computed) << "call " << i;
      }
      for (std::uint64_t step = 2; step < 1100; ++step) lossy.begin_step(step);  // ranks put their verdicts together
      EXPECT_EQ(lossy.collect_time()->compute_seconds, computed);
    });
  }
}

TEST(VirtualTime, WrongModelsAreRefused) {
  TimeModel model = model_of();
  LossyOptions options = options_of("direct", 0.1, model);
  validate(model, options.network);
  apply_recovery(*options.network.of(kClass), protocol("go_back_n"));
  validate(model, options.network);
  model.deadline_seconds = 1;
  EXPECT_THROW(validate(model, options.network), ConfigError);
  model = model_of();
  model.links.between.bytes_per_second = 0;
  EXPECT_THROW(validate(model, options.network), ConfigError);
  model = model_of();
  model.transfer_p99_over_p50 = 0.5;
  EXPECT_THROW(validate(model, options.network), ConfigError);
}

}  // namespace
}  // namespace droptest::comm::virtual_time_test
