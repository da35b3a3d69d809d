// SPDX-License-Identifier: Apache-2.0
#include "comm/rank_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/run_ranks.h"
#include "tests/comm/recording_communicator.h"

namespace droptest::comm::rank_agreement_test {
namespace {

using namespace std::chrono_literals;
using testing::Each;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::SizeIs;

constexpr auto kTimeout = 60s;

TEST(RankAgreement, AllRanksGetTheTextsOfAllRanksWhateverTheirLengths) {
  const std::vector<std::vector<std::string>> cases = {
      {"a", "", "three words here", std::string("\0 byte", 6)},
      {"", "", std::string(100'000, 'x')},
      {"", "", ""},
      {"only one rank"},
  };
  for (const std::vector<std::string>& texts : cases) {
    run_ranks(static_cast<int>(texts.size()), kTimeout, [&](Communicator& group) {
      const std::string& own = texts[static_cast<std::size_t>(group.rank())];
      EXPECT_THAT(gather_texts(own, group, "texts"), ElementsAreArray(texts)) << "rank " << group.rank();
    });
  }
}

TEST(RankAgreement, RanksHearFromTheRootWhileItWorks) {
  constexpr std::size_t kHeard = 4;
  std::atomic<bool> worked = false;
  std::array<std::vector<std::string>, 3> calls;
  run_ranks(3, kTimeout, [&](Communicator& group) {
    RecordingCommunicator recording(group);
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
  const auto body = [&](Communicator& group) {
    if (group.rank() != 0) {
      run_on_root(group, 1ms, "work", [] { FAIL() << "of another rank"; });
      ++gone_on;
      return;
    }
    EXPECT_THROW(run_on_root(group, 1ms, "work", [] { throw std::runtime_error("full disk"); }), std::runtime_error);
    ++gone_on;
  };
  run_ranks(2, kTimeout, body);
  EXPECT_EQ(gone_on, 2);
}

}  // namespace
}  // namespace droptest::comm::rank_agreement_test
