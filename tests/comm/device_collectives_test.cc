// SPDX-License-Identifier: Apache-2.0
// Collectives and the loss layer on tensors in device memory: the results of the host bit for bit, with equal fates.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/device/device_info.h"
#include "comm/device/device_tensor.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/statistics/device_samples.h"
#include "comm/run_ranks.h"
#include "sim/recovery/parity.h"
#include "tests/comm/conformance.h"
#include "tests/comm/lossy_program.h"
#include "tests/comm/lossy_recovery.h"
#include "tests/comm/started_programs.h"
#include "tests/comm/through_device.h"

namespace droptest::comm::device_collectives_test {
namespace {

constexpr auto kClass = kRecoveryClass;
constexpr std::chrono::milliseconds kTimeout{60000};

enum class Where { kHost, kDevice };

std::vector<std::uint64_t> digests(int ranks, Where where, std::uint64_t (*check)(Communicator&)) {
  std::vector<std::uint64_t> result(static_cast<std::size_t>(ranks));
  run_ranks(ranks, kTimeout, [&](Communicator& group) {
    if (where == Where::kHost) {
      result[static_cast<std::size_t>(group.rank())] = check(group);
      return;
    }
    ThroughDevice device(group);
    result[static_cast<std::size_t>(group.rank())] = check(device);
  });
  return result;
}

TEST(DeviceCollectives, LocalConforms) {
  DROPTEST_NEEDS_DEVICE();
  for (const int ranks : {1, 2, 3}) {
    EXPECT_EQ(digests(ranks, Where::kHost, check_conformance), digests(ranks, Where::kDevice, check_conformance))
        << ranks << " ranks";
  }
}

TEST(DeviceCollectives, GroupsOfLocalConform) {
  DROPTEST_NEEDS_DEVICE();
  EXPECT_EQ(digests(4, Where::kHost, check_conformance_of_splits),
            digests(4, Where::kDevice, check_conformance_of_splits));
}

TEST(DeviceCollectives, StartedProgramsHaveTheBitsOfTheHost) {
  DROPTEST_NEEDS_DEVICE();
  for (const int ranks : {2, 3}) {
    EXPECT_EQ(digests(ranks, Where::kHost, check_started_programs),
              digests(ranks, Where::kDevice, check_started_programs));
  }
}

TEST(DeviceCollectives, LargeExchangesConform) {
  DROPTEST_NEEDS_DEVICE();
  EXPECT_EQ(digests(2, Where::kHost, check_large_exchanges), digests(2, Where::kDevice, check_large_exchanges));
}

// No rank waits for the device between its calls: only streams and events order the work.
TEST(DeviceCollectives, CallsFollowEachOtherWithoutTheHost) {
  DROPTEST_NEEDS_DEVICE();
  constexpr int kRanks = 3;
  constexpr std::size_t kElems = 1000;
  constexpr int kCalls = 5;
  run_ranks(kRanks, kTimeout, [&](Communicator& group) {
    Stream stream;
    DeviceBuffer<float> data(kElems, "data");
    DeviceBuffer<float> sums(kElems, "sums");
    const std::vector<float> start(kElems, static_cast<float>(group.rank() + 1));
    copy_to_device(std::span<const float>(start), data.elems(), stream);
    // Each call reads the output of the last one, and the next one writes into the input of this one.
    for (int call = 0; call < kCalls; ++call) {
      group.all_reduce(device_tensor(DeviceSpan<const float>(data.elems()), stream),
                       device_tensor(sums.elems(), stream), ReduceOp::kSum, {kClass, "sums"});
      group.all_reduce(device_tensor(sums.elems(), stream), ReduceOp::kSum, {kClass, "sums of sums"});
      copy_on_device(DeviceSpan<const float>(sums.elems()), data.elems(), stream);
    }
    std::vector<float> result(kElems);
    copy_to_host(DeviceSpan<const float>(data.elems()), std::span<float>(result), stream);
    stream.synchronize();
    // 1 + 2 + 3 = 6, times 3 ranks; each later call multiplies by 9.
    const float want = 18.0F * static_cast<float>(std::pow(9.0, kCalls - 1));
    for (const float x : result) ASSERT_EQ(want, x);
    group.barrier({kClass, "end"});
  });
}

// Expects the errors of a call that rank 0 makes with host memory, rank 1 with device memory.
void expect_mixed_memory_is_refused(const std::function<void(Communicator&, Tensor)>& host_call) {
  try {
    run_ranks(2, kTimeout, [&](Communicator& group) {
      std::vector<float> host(10);
      if (group.rank() == 0) return host_call(group, Tensor(std::span(host)));
      Stream stream;
      DeviceBuffer<float> device(10, "data");
      group.all_reduce(device_tensor(device.elems(), stream), ReduceOp::kSum, {kClass, "mixed"});
    });
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string::npos, std::string(error.what()).find("rank 0 gives host memory, rank 1 device memory"))
        << error.what();
  }
}

TEST(DeviceCollectives, HostAndDeviceMemoryInOneCallIsAnError) {
  DROPTEST_NEEDS_DEVICE();
  expect_mixed_memory_is_refused([](Communicator& group, Tensor host) {
    group.all_reduce(host, ReduceOp::kSum, {kClass, "mixed"});
  });
  expect_mixed_memory_is_refused([](Communicator& group, Tensor host) {
    group.start_all_reduce(host, host, ReduceOp::kSum, {kClass, "mixed"}).wait();
  });
}

// The outcome of a program of collectives on one rank: the bytes of all results, and the group's statistics.
struct Outcome {
  std::vector<std::byte> bytes;
  ClassStatistics statistics;
};

template <class T>
std::vector<Outcome> outcomes(int ranks, const ClassNetwork& network, std::uint64_t sample_every_steps, Where where) {
  std::vector<Outcome> result(static_cast<std::size_t>(ranks));
  run_ranks(ranks, kTimeout, [&](Communicator& inner) {
    LossyOptions options = recovery_options(network);
    options.sample_every_steps = sample_every_steps;
    LossyCommunicator lossy(inner, options);
    Outcome& mine = result[static_cast<std::size_t>(inner.rank())];
    std::optional<ThroughDevice> device;
    if (where == Where::kDevice) device.emplace(lossy);
    Communicator& group = device ? static_cast<Communicator&>(*device) : lossy;
    for (std::uint64_t step = 0; step < 2; ++step) {
      lossy.begin_step(step);
      run_program<T>(group, step, mine.bytes);
    }
    lossy.verify_fates();
    mine.statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0);
  });
  return result;
}

template <class T>
void expect_twins(int ranks, const ClassNetwork& network, const std::string& what,
                  std::uint64_t sample_every_steps = 0) {
  const std::vector<Outcome> host = outcomes<T>(ranks, network, sample_every_steps, Where::kHost);
  const std::vector<Outcome> device = outcomes<T>(ranks, network, sample_every_steps, Where::kDevice);
  for (std::size_t r = 0; r < host.size(); ++r) {
    ASSERT_EQ(host[r].bytes.size(), device[r].bytes.size());
    const std::size_t elems = host[r].bytes.size() / sizeof(T);
    for (std::size_t i = 0; i < elems; ++i) {
      T x, y;
      std::memcpy(&x, host[r].bytes.data() + i * sizeof(T), sizeof(T));
      std::memcpy(&y, device[r].bytes.data() + i * sizeof(T), sizeof(T));
      ASSERT_EQ(0, std::memcmp(&x, &y, sizeof(T)))
          << what << ", " << sizeof(T) << "-byte elements, rank " << r << ", element " << i << ": host " << as_float(x)
          << ", device " << as_float(y);
    }
    const ClassStatistics& a = host[r].statistics;
    const ClassStatistics& b = device[r].statistics;
    EXPECT_EQ(a.digest, b.digest) << what;
    EXPECT_EQ(a.total().packets, b.total().packets) << what;
    EXPECT_EQ(a.total().lost_packets, b.total().lost_packets) << what;
    EXPECT_GT(a.total().lost_packets, 0U) << what;
    EXPECT_EQ(a.untouched, b.untouched) << what;
    // The sums have another order of additions: n rounding errors of double, n about 1e4.
    EXPECT_EQ(a.sampled_calls, b.sampled_calls) << what;
    if (a.sampled_calls == 0) continue;  // errors are unknown
    EXPECT_NEAR(a.nmse(), b.nmse(), 1e-11 * (1 + a.nmse())) << what;
    EXPECT_NEAR(a.cosine(), b.cosine(), 1e-11) << what;
  }
}

template <class T>
void expect_twins_of_fills(std::string_view path) {
  for (const FillEntry& fill : fills()) {
    ClassNetwork network = recovery_network(path, 0.1, 0.1);
    apply_fill(network, fill.fill);
    if (path == "hierarchical") network.group_ranks = 2;
    try {
      validate(network);
    } catch (const ConfigError&) {
      continue;  // a fill that has no meaning there
    }
    expect_twins<T>(path == "hierarchical" ? 4 : 3, network, std::string(path) + " " + std::string(fill.name));
  }
}

TEST(DeviceLosses, EveryPathAndFillHasTheHostsBits) {
  DROPTEST_NEEDS_DEVICE();
  for (const PathEntry& path : paths()) expect_twins_of_fills<float>(path.name);
}

TEST(DeviceLosses, OwnContributionsInThePlaceOfLostOnesHaveTheHostsBits) {
  DROPTEST_NEEDS_DEVICE();
  const auto means = []<class T>(std::type_identity<T>, double p, std::size_t count, Where where) {
    ClassNetwork network = recovery_network("direct", p, p);
    network.reduce.fill = network.gather.fill = Fill::kOwn;
    std::vector<std::vector<std::byte>> results(3);
    run_ranks(3, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, recovery_options(network));
      std::optional<ThroughDevice> device;
      if (where == Where::kDevice) device.emplace(lossy);
      Communicator& group = device ? static_cast<Communicator&>(*device) : lossy;
      std::vector<T> data = program_values<T>(1, inner.rank(), count);
      group.all_reduce(Tensor(std::span(data)), ReduceOp::kMean, {kClass, "mean", 0});
      append(data, results[static_cast<std::size_t>(inner.rank())]);
    });
    return results;
  };
  const auto expect_twins = [&means]<class T>(std::type_identity<T> type) {
    for (const double p : {0.3, 1.0}) {
      for (const std::size_t count : {std::size_t{517}, std::size_t{960}}) {  // single elements, and packs
        EXPECT_EQ(means(type, p, count, Where::kHost), means(type, p, count, Where::kDevice)) << p << " " << count;
      }
    }
  };
  expect_twins(std::type_identity<float>());
  expect_twins(std::type_identity<Bf16>());
}

// At loss 0 the results of `contribution` and `direct` are those of bare `local`.
TEST(DeviceLosses, WithoutLossNothingChanges) {
  DROPTEST_NEEDS_DEVICE();
  for (const std::string_view path : {"direct", "contribution"}) {
    run_ranks(3, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, recovery_options(recovery_network(path, 0, 0)));
      ThroughDevice bare_device(inner);
      ThroughDevice lossy_device(lossy);
      std::vector<std::byte> bare, through_layer;
      run_program<float>(bare_device, 1, bare);
      run_program<Bf16>(bare_device, 2, bare);
      run_program<float>(lossy_device, 1, through_layer);
      run_program<Bf16>(lossy_device, 2, through_layer);
      EXPECT_EQ(bare, through_layer) << path;
    });
  }
}

TEST(DeviceLosses, EveryElementTypeHasTheHostsBits) {
  DROPTEST_NEEDS_DEVICE();
  for (const std::string_view path : {"direct", "contribution"}) expect_twins_of_fills<Bf16>(path);
  expect_twins_of_fills<double>("direct");
}

TEST(DeviceLosses, SamplesAreTheHosts) {
  DROPTEST_NEEDS_DEVICE();
  expect_twins<float>(2, recovery_network("direct", 0.1, 0.1), "samples", 1);
  expect_twins<Bf16>(2, recovery_network("direct", 0.1, 0.1), "samples", 1);
}

TEST(DeviceLosses, EveryRecoveryHasTheHostsBits) {
  DROPTEST_NEEDS_DEVICE();
  for (const std::string_view path : {"direct", "contribution", "ring"}) {
    ClassNetwork coded = recovery_network(path, 0.2, 0.2);
    coded.reduce.recovery = coded.gather.recovery = std::make_shared<sim::Parity>(sim::ParityCode{4, 2});
    expect_twins<float>(3, coded, std::string(path) + " parity");

    ClassNetwork interleaved = recovery_network(path, 0.1, 0.1);
    interleaved.recovery.interleave_packets = 4;
    expect_twins<float>(3, interleaved, std::string(path) + " interleave");

    ClassNetwork transformed = recovery_network(path, 0.1, 0.1);
    transformed.recovery.hadamard_block_elems = 64;
    expect_twins<float>(3, transformed, std::string(path) + " hadamard");
    if (path == "direct") expect_twins<Bf16>(3, transformed, "direct hadamard");

    if (path == "ring") continue;
    ClassNetwork fed_back = recovery_network(path, 0.1, 0.1);
    fed_back.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
    expect_twins<float>(3, fed_back, std::string(path) + " error_feedback");
    if (path == "direct") expect_twins<Bf16>(3, fed_back, "direct error_feedback");
  }
  ClassNetwork attacked = recovery_network("direct", 0.1, 0.1);
  attacked.reduce.selection = LossSelection::kLargestNorm;
  expect_twins<float>(3, attacked, "largest norm");
}

// Codes, pairs and states of tensors on a device are computed in host memory. Sampled steps compare both ends.
TEST(DeviceLosses, CompressedSumsHaveTheBitsOfTheHost) {
  DROPTEST_NEEDS_DEVICE();
  using Feedback = ClassRecovery::ErrorFeedback;
  const auto sums = [](const ClassNetwork& network, Where where) {
    std::vector<std::vector<float>> results(3);
    LossyOptions options = recovery_options(network);
    options.sample_every_steps = 2;
    run_ranks(3, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      ThroughDevice device(lossy);
      Communicator& group = where == Where::kHost ? static_cast<Communicator&>(lossy) : device;
      for (std::uint64_t step = 0; step < 5; ++step) {
        group.begin_step(step);
        std::vector<float> data = program_values<float>(static_cast<int>(step), inner.rank(), 1500);
        group.all_reduce(Tensor(std::span(data)), ReduceOp::kMean, {kClass, "bucket", 0});
        auto& mine = results[static_cast<std::size_t>(inner.rank())];
        mine.insert(mine.end(), data.begin(), data.end());
      }
    });
    return results;
  };
  for (const Compression& compression :
       {Compression{CompressionKind::kInt8, 16}, Compression{CompressionKind::kBfloat16},
        Compression{CompressionKind::kTopK, 1, 0.1}, Compression{CompressionKind::kPowerSgd, 1, 0, 2}}) {
    const bool by_factors = compression.kind == CompressionKind::kPowerSgd;
    for (const Feedback feedback : {Feedback::kOff, Feedback::kOn, Feedback::kEf21, Feedback::kEf21Acknowledged}) {
      ClassNetwork network =
          by_factors ? recovery_network("contribution", 0.1, 0) : recovery_network("direct", 0.1, 0.1);
      network.compression = compression;
      network.recovery.error_feedback = feedback;
      if (by_factors) network.gather.loss = nullptr;
      if (by_factors && network.recovery.keeps_states()) continue;
      EXPECT_EQ(sums(network, Where::kHost), sums(network, Where::kDevice))
          << compression_entry(compression.kind).name << ", feedback " << static_cast<int>(feedback);
    }
  }
}

// Two ranks have 1000 elements. One element is NaN on one rank, and others differ by 3.
TEST(DeviceLosses, ANaNIsTheLargestDivergence) {
  DROPTEST_NEEDS_DEVICE();
  constexpr std::size_t kElems = 1000;
  Stream stream;
  DeviceBuffer<float> buffers[2] = {{kElems, "rank 0"}, {kElems, "rank 1"}};
  const auto largest = [&](std::size_t place, std::size_t rank, float value) {
    const std::byte* contributions[2];
    for (std::size_t r = 0; r < 2; ++r) {
      std::vector<float> values(kElems, 3 * static_cast<float>(r));
      if (r == rank) values[place] = value;
      copy_to_device(std::span<const float>(values), buffers[r].elems(), stream);
      stream.synchronize();
      contributions[r] = reinterpret_cast<const std::byte*>(buffers[r].elems().data());
    }
    return divergence_sums_on_device(ElementType::kFloat32, kElems, contributions, stream).max;
  };
  EXPECT_EQ(largest(0, 0, 0), 3);
  for (const std::size_t place : {std::size_t{0}, std::size_t{300}, kElems - 1}) {
    EXPECT_TRUE(std::isnan(largest(place, 0, std::nanf("")))) << place;
    EXPECT_TRUE(std::isnan(largest(place, 1, std::nanf("")))) << place;
  }
}

// The loss layer keeps values of a call in buffers that its next call uses again, here on another stream.
TEST(DeviceLosses, CallsOnTwoStreamsDoNotMix) {
  DROPTEST_NEEDS_DEVICE();
  constexpr std::size_t kElems = 640;
  ClassNetwork network = recovery_network("direct", 0, 0.5);
  network.gather.fill = Fill::kOwn;
  enum class Calls : std::uint8_t { kBlocking, kStarted };
  const auto run = [&](Where where, Calls calls) {
    std::vector<std::vector<float>> results(4);
    run_ranks(2, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, recovery_options(network));
      const int me = inner.rank();
      std::vector<float>& first = results[static_cast<std::size_t>(2 * me)] = program_values<float>(1, me, kElems);
      std::vector<float>& second = results[static_cast<std::size_t>(2 * me + 1)] = program_values<float>(2, me, kElems);
      if (where == Where::kHost) {
        lossy.all_reduce(Tensor(std::span(first)), ReduceOp::kSum, {kClass, "first"});
        lossy.all_reduce(Tensor(std::span(second)), ReduceOp::kSum, {kClass, "second"});
        return;
      }
      Stream streams[2];
      DeviceBuffer<float> buffers[2] = {{kElems, "first"}, {kElems, "second"}};
      copy_to_device(std::span<const float>(first), buffers[0].elems(), streams[0]);
      copy_to_device(std::span<const float>(second), buffers[1].elems(), streams[1]);
      const Tensor tensors[2] = {device_tensor(buffers[0].elems(), streams[0]),
                                 device_tensor(buffers[1].elems(), streams[1])};
      if (calls == Calls::kStarted) {
        Work of_first = lossy.start_all_reduce(tensors[0], tensors[0], ReduceOp::kSum, {kClass, "first"});
        Work of_second = lossy.start_all_reduce(tensors[1], tensors[1], ReduceOp::kSum, {kClass, "second"});
        of_first.wait();
        of_second.wait();
        EXPECT_EQ(lossy.buffers().messages.bytes, kElems * sizeof(float)) << "one copy for both";
      } else {
        lossy.all_reduce(tensors[0], ReduceOp::kSum, {kClass, "first"});
        lossy.all_reduce(tensors[1], ReduceOp::kSum, {kClass, "second"});
      }
      // Rank 1 is checked first, so that rank 0's streams advance only as far as rank 1 needs.
      for (int turn = 1; turn >= 0; --turn) {
        for (int s = 1; s >= 0 && turn == me; --s) {
          copy_to_host(DeviceSpan<const float>(buffers[s].elems()), std::span(s == 0 ? first : second), streams[s]);
          streams[s].synchronize();
        }
        inner.barrier({kClass, "turn"});
      }
    });
    return results;
  };
  const auto expected = run(Where::kHost, Calls::kBlocking);
  EXPECT_EQ(run(Where::kDevice, Calls::kBlocking), expected);
  EXPECT_EQ(run(Where::kDevice, Calls::kStarted), expected);
}

// One message is under way at a time, each larger than all before it.
TEST(DeviceCollectives, MemoryOfMessagesIsThatOfThoseUnderWay) {
  DROPTEST_NEEDS_DEVICE();
  constexpr std::size_t kMebibyte = std::size_t{1} << 20;
  constexpr std::size_t kMost = 16;
  run_ranks(2, kTimeout, [&](Communicator& group) {
    Stream stream;
    DeviceBuffer<std::byte> buffer(kMost * kMebibyte, "messages of all sizes");
    const auto send = [&](std::size_t mebibytes) {
      Tensor data(ElementType::kFloat32, {buffer.elems().data(), mebibytes * kMebibyte}, &stream);
      if (group.rank() == 0) group.send(data, 1, {kClass, "message"});
      if (group.rank() == 1) group.recv(data, 0, {kClass, "message"});
      stream.synchronize();
      group.barrier({kClass, "message"});
    };
    group.barrier({kClass, "all buffers are there"});
    const std::uint64_t before = free_device_bytes(0);
    group.barrier({kClass, "before"});
    for (std::size_t size = 1; size <= kMost; ++size) send(size);
    for (std::size_t size = kMost; size >= 1; --size) send(size);
    EXPECT_LT(before,
              free_device_bytes(0) + 2 * kMost * kMebibyte);  // memory that a barrier held at first may be free now
    group.barrier({kClass, "after"});
  });
}

TEST(DeviceMemoryErrors, SayWhatWantedHowMuch) {
  DROPTEST_NEEDS_DEVICE();
  try {
    const DeviceMemory memory(std::size_t{1} << 50U, "activations of 12 blocks");
    FAIL() << "no error";
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    EXPECT_NE(std::string::npos, text.find("out of memory: activations of 12 blocks wants 1048576.00 GiB")) << text;
    EXPECT_NE(std::string::npos, text.find("are free")) << text;
  }
}

}  // namespace
}  // namespace droptest::comm::device_collectives_test
