// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/comm/fake_clock.h"

namespace droptest::comm::watchdog_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// An operation that a test controls, and that counts the calls of finished().
struct Scripted final : OperationInFlight {
  bool started() override { return has_started; }
  bool finished() override {
    ++looks;
    looks.notify_all();
    if (breaks) throw std::runtime_error("illegal address");
    return has_finished;
  }
  /// Returns when the watchdog has read the time, looked at this operation and drawn its conclusion, all after this
  /// call.
  void await_look() const { await(looks, looks + 3); }

  std::atomic<int> looks = 0;
  std::atomic<bool> has_started = true;
  std::atomic<bool> has_finished = false;
  std::atomic<bool> breaks = false;
};

class Transport final : public WatchedTransport {
 public:
  std::optional<Failure> failure() override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  Failure explain_stall(const Call& call, const std::vector<int>& world_ranks) override {
    return {0, "all_reduce", "stalled " + std::string(call.name()) + " of " + rank_list(world_ranks)};
  }
  Failure device_failure(const Call& call, const std::string& reason) override {
    return {0, "all_reduce", reason + " in " + std::string(call.name())};
  }
  void end(const Failure& /*failure*/) noexcept override {
    ++ends;
    hangs.wait(true);
  }
  void fail(const std::string& cause) {
    const std::lock_guard lock(mutex_);
    failure_ = Failure{1, "", cause};
  }

  std::atomic<int> ends = 0;
  std::atomic<bool> hangs = false;

 private:
  std::mutex mutex_;
  std::optional<Failure> failure_;
};

Call call(const char* name) { return {Operation::kAllReduce, ElementType::kFloat32, 12, {.name = name}, 3}; }

std::string end_of(const Watchdog& watchdog) {
  for (;; std::this_thread::yield()) {
    if (const auto failure = watchdog.ended()) return failure->cause;
  }
}

void wait_until_idle(const Watchdog& watchdog) {
  while (!watchdog.activity().empty()) std::this_thread::yield();
}

const int kQueue = 0;
const int kOtherQueue = 0;
const auto kRanks = std::make_shared<const std::vector<int>>(std::vector<int>{0, 2});

TEST(Watchdog, AnOperationThatStallsEndsTheTransportOnce) {
  const auto transport = std::make_shared<Transport>();
  FakeClock clock;
  Watchdog watchdog(transport, 50ms, 1ms, 10s, clock);
  const auto operation = std::make_shared<Scripted>();
  watchdog.watch(&kQueue, call("grad.wte"), kRanks, operation);
  watchdog.watch(&kQueue, call("later"), kRanks, std::make_shared<Scripted>());
  operation->await_look();
  clock.advance(49ms);
  operation->await_look();
  EXPECT_FALSE(watchdog.ended());
  clock.advance(1ms);
  EXPECT_EQ(end_of(watchdog), "stalled grad.wte of ranks 0, 2");
  watchdog.end({0, "", "again"});
  EXPECT_EQ(watchdog.ended()->cause, "stalled grad.wte of ranks 0, 2");
  EXPECT_EQ(transport->ends, 1);
}

TEST(Watchdog, OperationsThatEndAreForgottenAndStallNothing) {
  const auto transport = std::make_shared<Transport>();
  FakeClock clock;
  Watchdog watchdog(transport, 50ms, 1ms, 10s, clock);
  for (int i = 0; i < 100; ++i) {
    const auto operation = std::make_shared<Scripted>();
    watchdog.watch(i % 2 == 0 ? &kQueue : &kOtherQueue, call("x"), kRanks, operation);
    operation->has_finished = true;
  }
  wait_until_idle(watchdog);
  clock.advance(100ms);
  const auto last = std::make_shared<Scripted>();
  watchdog.watch(&kQueue, call("last"), kRanks, last);
  last->await_look();
  EXPECT_FALSE(watchdog.ended());
  EXPECT_EQ(transport->ends, 0);
}

TEST(Watchdog, WhatComesBeforeAnOperationIsNotItsStall) {
  const auto transport = std::make_shared<Transport>();
  FakeClock clock;
  Watchdog watchdog(transport, 50ms, 1ms, 10s, clock);
  const auto operation = std::make_shared<Scripted>();
  operation->has_started = false;
  watchdog.watch(&kQueue, call("grad.wte"), kRanks, operation);
  operation->await_look();
  clock.advance(200ms);
  operation->await_look();
  EXPECT_FALSE(watchdog.ended());
  EXPECT_EQ(watchdog.activity(),
            "all_reduce(sum of 12 float32, \"grad.wte\", control), which its device has not reached");
  operation->has_started = true;
  operation->await_look();
  EXPECT_FALSE(watchdog.ended());
  clock.advance(50ms);
  EXPECT_EQ(end_of(watchdog), "stalled grad.wte of ranks 0, 2");
}

TEST(Watchdog, EachOperationOfAQueueHasTheWholeTimeout) {
  const auto transport = std::make_shared<Transport>();
  FakeClock clock;
  Watchdog watchdog(transport, 2s, 1ms, 10s, clock);
  std::vector<std::shared_ptr<Scripted>> operations;
  for (int i = 0; i < 6; ++i) {
    operations.push_back(std::make_shared<Scripted>());
    watchdog.watch(&kQueue, call("x"), kRanks, operations.back());
  }
  for (const auto& operation : operations) {
    operation->await_look();
    clock.advance(500ms);  // together longer than the timeout
    operation->has_finished = true;
  }
  wait_until_idle(watchdog);
  EXPECT_FALSE(watchdog.ended());
}

TEST(Watchdog, AStalledQueueIsFoundWhileAnotherGoesOn) {
  const auto transport = std::make_shared<Transport>();
  FakeClock clock;
  Watchdog watchdog(transport, 50ms, 1ms, 10s, clock);
  watchdog.watch(&kQueue, call("stuck"), kRanks, std::make_shared<Scripted>());
  for (int i = 0; i < 5; ++i) {
    const auto operation = std::make_shared<Scripted>();
    watchdog.watch(&kOtherQueue, call("busy"), kRanks, operation);
    operation->await_look();
    EXPECT_FALSE(watchdog.ended());
    clock.advance(10ms);
    operation->has_finished = true;
  }
  EXPECT_THAT(end_of(watchdog), HasSubstr("stuck"));
}

TEST(Watchdog, FailuresOfOthersAndOfTheDeviceEndTheTransport) {
  const auto transport = std::make_shared<Transport>();
  Watchdog watchdog(transport, 60s, 1ms);
  transport->fail("rank 1 failed: loss is not a number");
  EXPECT_EQ(end_of(watchdog), "rank 1 failed: loss is not a number");

  const auto second = std::make_shared<Transport>();
  Watchdog of_device(second, 60s, 1ms);
  const auto operation = std::make_shared<Scripted>();
  operation->breaks = true;
  of_device.watch(&kQueue, call("grad.wte"), kRanks, operation);
  EXPECT_EQ(end_of(of_device), "illegal address in grad.wte");
}

TEST(Watchdog, EndReturnsWhenTheTransportHasEnded) {
  const auto transport = std::make_shared<Transport>();
  Watchdog watchdog(transport, 60s, 1ms);
  watchdog.end({0, "", "rank 0 failed: asked to"});
  EXPECT_EQ(transport->ends, 1);
  EXPECT_EQ(watchdog.ended()->cause, "rank 0 failed: asked to");
}

TEST(Watchdog, ATransportThatHangsHangsNobody) {
  const auto transport = std::make_shared<Transport>();
  transport->hangs = true;
  {
    Watchdog watchdog(transport, 60s, 1ms, 50ms);
    watchdog.end({0, "", "rank 0 failed"});  // gives up waiting, as does the destructor
  }
  EXPECT_EQ(transport->ends, 1);
  transport->hangs = false;
  transport->hangs.notify_all();
  while (transport.use_count() > 1) std::this_thread::yield();  // the thread that was left behind
}

}  // namespace
}  // namespace droptest::comm::watchdog_test
