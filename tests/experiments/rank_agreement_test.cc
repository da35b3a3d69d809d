// SPDX-License-Identifier: Apache-2.0
#include "comm/rank_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "comm/run_ranks.h"
#include "tests/models/recording_communicator.h"

namespace droptest::experiments::rank_agreement_test {
namespace {

using namespace std::chrono_literals;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

constexpr auto kTimeout = 60s;

TEST(RankAgreement, RanksHearFromTheRootWhileItWorks) {
  constexpr std::size_t kHeard = 4;
  std::atomic<bool> worked = false;
  std::array<std::vector<std::string>, 3> calls;
  comm::run_ranks(3, kTimeout, [&](comm::Communicator& group) {
    models::RecordingCommunicator recording(group);
    run_on_root(recording, 1ms, "long work", [&] {
      const auto deadline = std::chrono::steady_clock::now() + kTimeout;
      while (recording.calls_so_far < kHeard && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      worked = true;
    });
    EXPECT_TRUE(worked) << "rank " << group.rank() << " did not wait";
    calls[static_cast<std::size_t>(group.rank())] = recording.calls;
  });
  EXPECT_THAT(calls[0], SizeIs(testing::Gt(kHeard)));
  EXPECT_THAT(calls[0], Each(HasSubstr("broadcast long work layer -1 control 1")));
  EXPECT_THAT(calls, Each(calls[0]));
}

TEST(RankAgreement, AnErrorOfTheRootsWorkIsItsOwn) {
  std::atomic<int> gone_on = 0;
  const auto body = [&](comm::Communicator& group) {
    if (group.rank() != 0) {
      run_on_root(group, 1ms, "work", [] { FAIL() << "of another rank"; });
      ++gone_on;
      return;
    }
    EXPECT_THROW(run_on_root(group, 1ms, "work", [] { throw std::runtime_error("full disk"); }), std::runtime_error);
    ++gone_on;
  };
  comm::run_ranks(2, kTimeout, body);
  EXPECT_EQ(gone_on, 2);
}

}  // namespace
}  // namespace droptest::experiments::rank_agreement_test
