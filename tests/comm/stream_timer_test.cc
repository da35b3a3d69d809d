// SPDX-License-Identifier: Apache-2.0
// A test on the artificial clock of the fake device, on which zeroing memory takes 2 microseconds plus 1 for every
// 1,000,000 bytes.
#include "comm/device/stream_timer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <vector>

#include "comm/device/device_buffer.h"
#include "sim/error.h"
#include "tests/comm/fake_clock.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace droptest::comm::stream_timer_test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kBytes = 3'000'000;  // 5 microseconds

class StreamTimerTest : public testing::Test {
 protected:
  void work(Stream& stream) { zero_on_device(memory_.data(), kBytes, stream); }
  static double microseconds(Clock::TimePoint from, Clock::TimePoint to) {
    return std::chrono::duration<double, std::micro>(to - from).count();
  }

  fake_cuda::Scope scope_;
  FakeClock clock_;
  Stream stream_;
  DeviceMemory memory_{kBytes, "a test's"};
};

TEST_F(StreamTimerTest, PiecesHaveTheTimesOfTheDeviceAndItsHost) {
  StreamTimer timer(clock_);
  clock_.advance(1s);
  const auto origin = clock_.now();
  work(stream_);
  timer.start(stream_);
  work(stream_);
  {
    const StreamTimer::Scope outer(&timer, 7, &stream_);
    work(stream_);
    const StreamTimer::Scope inner(&timer, 8, &stream_);
    work(stream_);
  }
  const std::vector<StreamTimer::Piece> pieces = timer.stop();
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].label, 8U);
  EXPECT_NEAR(microseconds(origin, pieces[0].begin), 10, 1e-2);
  EXPECT_NEAR(microseconds(origin, pieces[0].end), 15, 1e-2);
  EXPECT_EQ(pieces[1].label, 7U);
  EXPECT_NEAR(microseconds(origin, pieces[1].begin), 5, 1e-2);
  EXPECT_NEAR(microseconds(origin, pieces[1].end), 15, 1e-2);
}

TEST_F(StreamTimerTest, StreamsAreNumberedAndWaitForEachOther) {
  Stream other;
  StreamTimer timer(clock_);
  timer.start(stream_);
  {
    const StreamTimer::Scope first(&timer, 1, &stream_);
    work(stream_);
  }
  Event produced;
  produced.record(stream_);
  other.wait(produced);
  {
    const StreamTimer::Scope second(&timer, 2, &other);
    work(other);
  }
  const std::vector<StreamTimer::Piece> pieces = timer.stop();
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].stream, 0U);
  EXPECT_EQ(pieces[1].stream, 1U);
  EXPECT_NEAR(microseconds(pieces[0].end, pieces[1].begin), 0, 1e-2) << "it begins when the awaited work is done";
  EXPECT_NEAR(microseconds(pieces[1].begin, pieces[1].end), 5, 1e-2);
}

TEST_F(StreamTimerTest, TakesWhatIsDoneWithoutAWaitAndUsesEventsAgain) {
  StreamTimer timer(clock_);
  timer.start(stream_);
  const auto piece = [&] {
    const StreamTimer::Scope scope(&timer, 1, &stream_);
    work(stream_);
  };
  piece();
  const std::uint64_t waits = fake_cuda::synchronizations();
  EXPECT_TRUE(timer.take_done().empty()) << "the device is not there yet";
  EXPECT_EQ(fake_cuda::synchronizations(), waits);
  stream_.synchronize();
  EXPECT_EQ(timer.take_done().size(), 1U);
  EXPECT_TRUE(timer.take_done().empty());
  const std::size_t events = fake_cuda::live_events();
  for (int i = 0; i < 10; ++i) {
    piece();
    stream_.synchronize();
    EXPECT_EQ(timer.take_done().size(), 1U);
  }
  EXPECT_EQ(fake_cuda::live_events(), events);
}

TEST_F(StreamTimerTest, OffItPutsNothingOnAStream) {
  StreamTimer timer(clock_);
  const std::uint64_t before = fake_cuda::calls("cudaEventRecord");
  {
    const StreamTimer::Scope off(&timer, 1, &stream_);
    const StreamTimer::Scope absent(nullptr, 1, &stream_);
  }
  EXPECT_EQ(fake_cuda::calls("cudaEventRecord"), before);
  timer.start(stream_);
  const StreamTimer::Scope of_host(&timer, 1, nullptr);
  EXPECT_EQ(fake_cuda::calls("cudaEventRecord"), before + 1) << "the begin of the measurement alone";
  EXPECT_TRUE(timer.stop().empty());
  EXPECT_FALSE(timer.is_on());
}

TEST_F(StreamTimerTest, AnEventThatFailsIsAnErrorOfTheDeviceAtTheBeginAlone) {
  StreamTimer timer(clock_);
  timer.start(stream_);
  fake_cuda::fail_call("cudaEventRecord", 1, 700);
  EXPECT_THROW(timer.begin(1, stream_), DeviceError);
  {
    const StreamTimer::Scope piece(&timer, 1, &stream_);
    fake_cuda::fail_call("cudaEventRecord", 1, 700);
  }
  EXPECT_TRUE(timer.stop().empty());
}

}  // namespace
}  // namespace droptest::comm::stream_timer_test
