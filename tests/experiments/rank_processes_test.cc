// SPDX-License-Identifier: Apache-2.0
// The end of the ranks that this process starts when one of them fails.
#include "experiments/process/rank_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "sim/error.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::rank_processes_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Rank 1 stops itself; rank 0 fails when it has seen that. Waiting for rank 1 would take the hour.
TEST(RankProcesses, AStoppedRankIsEndedWithoutGrace) {
  const TemporaryFolder folder;
  const std::string pid_file = folder.path() + "/pid";
  const std::string script = "if [ $RANK = 1 ]; then echo $$ > " + pid_file + ".new; mv " + pid_file + ".new " +
                             pid_file + "; kill -STOP $$; exit 0; fi; until grep -q 'State:.T' /proc/$(cat " +
                             pid_file + ")/status 2>/dev/null; do :; done; echo 'no data from rank 1' >&2; exit 3";
  RankProcessesOptions options;
  options.command = {"/bin/sh", "-c", script};
  options.world_size = 2;
  options.log_directory = folder.path() + "/logs";
  options.grace = std::chrono::hours(1);
  try {
    run_rank_processes(options);
    FAIL() << "nothing was thrown";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 of 2 ended with exit code 3"), HasSubstr("no data from rank 1"),
                                    HasSubstr("ranks stopped since they did not end: 1")));
  }
}

// The file in memory has room although the disk is full.
TEST(RankProcesses, ARankWhoseLogHasNoRoomIsHeardAllTheSame) {
  const TemporaryFolder folder;
  RankProcessesOptions options;
  // The line in the log is torn.
  options.command = {"/bin/sh", "-c", "echo 'no space left' >> $DROPTEST_SPOKEN_WORDS; printf 'chec' >&2; exit 2"};
  options.world_size = 1;
  options.log_directory = folder.path() + "/logs";
  try {
    run_rank_processes(options);
    FAIL() << "nothing was thrown";
  } catch (const RankFailure& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("rank 0 of 1 ended with exit code 2: no space left (logs"));
  }
}

TEST(RankProcesses, ASignalThatThisProcessIgnoresIsNotIgnoredByARank) {
  const TemporaryFolder folder;
  struct sigaction before {};
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);
  RankProcessesOptions options;
  // SIGPIPE is the bit 0x1000.
  options.command = {"/bin/sh", "-c",
                     "case $(grep SigIgn /proc/self/status) in *[13579bdf][0-9a-f][0-9a-f][0-9a-f]) echo ignored;; *) "
                     "echo taken;; esac; "
                     "exit 2"};
  options.world_size = 1;
  options.log_directory = folder.path() + "/logs";
  try {
    run_rank_processes(options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const RankFailure& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("exit code 2: taken (logs"));
  }
  ::sigaction(SIGPIPE, &before, nullptr);
}

// Rank 1 fails after rank 0 has ended, so its failure could be a consequence of that end.
TEST(RankProcesses, ARankThatKnowsTheCauseIsHeardAlthoughItIsNotTheFirst) {
  const TemporaryFolder folder;
  const std::string ended = folder.path() + "/ended";
  RankProcessesOptions options;
  options.command = {"/bin/sh", "-c",
                     "if [ $RANK = 0 ]; then echo 'no data from rank 1' >&2; echo $$ > " + ended + ".new; mv " + ended +
                         ".new " + ended + "; exit 1; fi; until test -e " + ended + " && ! grep -q 'State:.[RSD]' " +
                         "/proc/$(cat " + ended + ")/status 2>/dev/null; do :; done; echo 'text changed' >&2; exit 2"};
  options.world_size = 2;
  options.log_directory = folder.path() + "/logs";
  options.grace = std::chrono::hours(1);
  options.telling_code = 2;
  try {
    run_rank_processes(options);
    FAIL() << "nothing was thrown";
  } catch (const RankFailure& failure) {
    EXPECT_THAT(failure.what(), AllOf(HasSubstr("rank 1 of 2 ended with exit code 2"), HasSubstr("text changed")));
    EXPECT_EQ(failure.status.code, 2);
  }
}

}  // namespace
}  // namespace droptest::experiments::rank_processes_test
