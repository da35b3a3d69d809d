// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/gloo_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/run_ranks.h"
#include "sim/error.h"
#include "tests/comm/conformance.h"
#include "tests/comm/free_port.h"
#include "tests/comm/rank_processes.h"
#include "tests/comm/started_programs.h"

namespace droptest::comm::gloo_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> local_digests(int world_size, std::uint64_t (*check)(Communicator&)) {
  std::vector<std::string> digests(static_cast<std::size_t>(world_size));
  run_ranks(world_size, 60s, [&](Communicator& communicator) {
    digests[static_cast<std::size_t>(communicator.rank())] = "ok " + std::to_string(check(communicator));
  });
  return digests;
}

void expect_local_bits(std::initializer_list<int> world_sizes, const std::string& name,
                       std::uint64_t (*check)(Communicator&)) {
  for (const int world_size : world_sizes) {
    SCOPED_TRACE(world_size);
    const TemporaryDirectory directory;
    const auto reports = run_processes({.world_size = world_size, .name = name}, directory.path());
    const auto want = local_digests(world_size, check);
    for (std::size_t r = 0; r < reports.size(); ++r) EXPECT_EQ(reports[r].text, want[r]);
  }
}

TEST(Gloo, EveryOperationGivesTheBitsOfLocal) {
  expect_local_bits({1, 2, 3, 5, 7, 8}, "conformance", check_conformance);
}

TEST(Gloo, PartsOfASplitGiveTheBitsOfLocalToo) { expect_local_bits({2, 5}, "splits", check_conformance_of_splits); }

TEST(Gloo, MessagesThatTravelWithTheCallAndLongerOnesGiveTheBitsOfLocal) {
  expect_local_bits({2, 4}, "message_sizes", check_message_sizes);
}

TEST(Gloo, ChannelsGiveTheBitsOfLocalAtTheSameTime) {
  expect_local_bits({2, 3}, "channels", check_conformance_of_channels);
}

TEST(Gloo, StartedProgramsGiveTheBitsOfBlockingOnesOnLocal) {
  expect_local_bits({1, 2, 3, 5}, "started", check_started_programs);
}

TEST(Gloo, LargeExchangesDoNotDeadlock) { expect_local_bits({2, 4}, "large_exchanges", check_large_exchanges); }

TEST(Gloo, SendsAreTakenEvenWhereTheSenderLeavesFirst) {
  const TemporaryDirectory directory;
  const auto reports = run_processes({.world_size = 3, .name = "send_much"}, directory.path());
  for (const RankReport& report : reports) EXPECT_EQ(report.text, "ok 0");
}

TEST(Gloo, WhatTheSystemHasNotDeliveredYetOutlivesItsSender) {
  const TemporaryDirectory directory;
  const auto reports = run_processes({.world_size = 2, .name = "leave_with_bytes_on_their_way"}, directory.path());
  for (const RankReport& report : reports) EXPECT_EQ(report.text, "ok 0");
}

struct Failing {
  const char* how;
  std::chrono::milliseconds timeout;  ///< long if the failure must be found without it
  const char* text;
};
const std::vector<Failing> kFailures = {
    {"kill", 50s, "rank {} died or lost its connection"},   {"exit", 50s, "rank {} died or lost its connection"},
    {"throw", 50s, "rank {} failed: loss is not a number"}, {"leave", 50s, "rank {} has left the group"},
    {"stop", 1500ms, "no data from rank {} for 1500 ms"},   {"sleep", 1500ms, "no data from rank {} for 1500 ms"},
};

std::string with_rank(std::string text, int rank) {
  const std::size_t place = text.find("{}");
  return place == std::string::npos ? text : text.replace(place, 2, std::to_string(rank));
}

void expect_survivors_name_culprit(const Scenario& scenario, const std::string& operation, const std::string& text) {
  SCOPED_TRACE(scenario.name + " of " + std::to_string(scenario.world_size));
  const TemporaryDirectory directory;
  const auto reports = run_processes(scenario, directory.path());
  for (int r = 0; r < scenario.world_size; ++r) {
    if (r == scenario.culprit) continue;
    const RankReport& report = reports[static_cast<std::size_t>(r)];
    EXPECT_THAT(report.text, AllOf(StartsWith("error CommError: " + operation + ": rank " + std::to_string(r) + " of " +
                                              std::to_string(scenario.world_size)),
                                   HasSubstr(with_rank(text, scenario.culprit))));
    EXPECT_TRUE(WIFEXITED(report.wait_status) && WEXITSTATUS(report.wait_status) == 2);
  }
}

TEST(GlooFailure, EverySurvivorNamesTheCulprit) {
  for (const Failing& failing : kFailures) {
    std::vector<std::thread> at_once;  // most of the time is spent waiting for timeouts
    for (const int world_size : {2, 3, 5}) {
      at_once.emplace_back([&failing, world_size] {
        expect_survivors_name_culprit({.world_size = world_size,
                                       .name = "world:" + std::string(failing.how),
                                       .culprit = 1,
                                       .timeout = failing.timeout},
                                      "all_reduce", failing.text);
      });
    }
    for (std::thread& thread : at_once) thread.join();
  }
}

TEST(GlooFailure, ARankThatTheMachineHoldsBackIsNotTheCulprit) {
  expect_survivors_name_culprit({.world_size = 3, .name = "world:stop", .culprit = 1, .timeout = 300ms, .held_back = 2},
                                "all_reduce", "no data from rank {} for 300 ms");
}

TEST(GlooFailure, EverySurvivorOfAnExchangeNamesTheCulprit) {
  std::vector<std::thread> at_once;
  for (const Failing& failing : kFailures) {
    at_once.emplace_back([&failing] {
      const std::string name = "exchange:" + std::string(failing.how);
      expect_survivors_name_culprit({.world_size = 3, .name = name, .culprit = 1, .timeout = failing.timeout},
                                    "exchange", failing.text);
    });
  }
  for (std::thread& thread : at_once) thread.join();
}

TEST(GlooFailure, TheOperationIsNamedWithStepAndBytes) {
  const TemporaryDirectory directory;
  const auto reports =
      run_processes({.world_size = 3, .name = "large:stop", .culprit = 0, .timeout = 1500ms}, directory.path());
  for (const int r : {1, 2}) {
    EXPECT_THAT(reports[static_cast<std::size_t>(r)].text,
                AllOf(HasSubstr("(step 3, grad.wte, 4000000 bytes)"), HasSubstr("no data from rank 0"),
                      HasSubstr("it does not answer")));
  }
}

TEST(GlooFailure, RanksThatSeeOnlyTheirNeighbourNameTheCulpritToo) {
  expect_survivors_name_culprit({.world_size = 5, .name = "chain:kill", .culprit = 4, .timeout = 50s}, "recv",
                                "rank {} died or lost its connection");
  expect_survivors_name_culprit({.world_size = 5, .name = "chain:stop", .culprit = 4, .timeout = 1500ms}, "recv",
                                "no data from rank {} for 1500 ms");
  expect_survivors_name_culprit({.world_size = 5, .name = "chain:sleep", .culprit = 4, .timeout = 1500ms}, "recv",
                                "it lives, but has not called");
}

TEST(GlooFailure, FailuresReachRanksThatAreInOtherParts) {
  expect_survivors_name_culprit({.world_size = 5, .name = "part:kill", .culprit = 3, .timeout = 50s}, "all_reduce",
                                "rank {} died or lost its connection");
  expect_survivors_name_culprit({.world_size = 4, .name = "part:stop", .culprit = 2, .timeout = 1500ms}, "all_reduce",
                                "no data from rank {} for 1500 ms");
}

TEST(GlooFailure, RanksThatCallDifferentThingsAllSayWhoCalledWhat) {
  for (const auto& [what, text] : std::vector<std::pair<std::string, std::string>>{
           {"operation", "rank 1: barrier(\"grad.wte\""},
           {"count", "rank 1: all_reduce(sum of 11 float32"},
           {"name", "rank 1: all_reduce(sum of 12 float32, \"grad.wpe\""},
           {"all_to_all", "sends 2 elements to rank 1, which expects 3"},
           {"exchange_count",
            "rank 0 calls exchange(1000000 float32, \"activation\", control), rank 1 calls exchange(999999"},
           {"exchange_recv", "rank 0 calls exchange(12 float32, \"activation\", control), rank 1 calls recv(12"}}) {
    SCOPED_TRACE(what);
    const TemporaryDirectory directory;
    const auto reports = run_processes({.world_size = 3, .name = "disagree:" + what, .culprit = 1}, directory.path());
    for (const int r : {0, 2}) {
      EXPECT_THAT(reports[static_cast<std::size_t>(r)].text, AllOf(StartsWith("error CommError: "), HasSubstr(text)));
    }
  }
}

TEST(GlooRendezvous, ARankThatDoesNotComeIsNamed) {
  const TemporaryDirectory directory;
  const auto reports =
      run_processes({.world_size = 4, .name = "conformance", .timeout = 700ms, .absent = {1, 3}}, directory.path());
  for (const std::size_t r : {0U, 2U}) {
    EXPECT_THAT(reports[r].text, AllOf(HasSubstr("CommError"), HasSubstr("ranks 1, 3 did not come within 700 ms")));
  }
}

TEST(GlooRendezvous, AnIdThatWasUsedIsRefusedAndALaunchThatEndedWellLeavesNothing) {
  const TemporaryDirectory directory;
  const Scenario good{.world_size = 2, .name = "send_much"};
  for (int i = 0; i < 2; ++i) {
    for (const RankReport& report : run_processes(good, directory.path())) EXPECT_EQ(report.text, "ok 0");
    EXPECT_FALSE(std::filesystem::exists(directory.path() / "rendezvous" / "test"));
  }
  run_processes({.world_size = 2, .name = "world:throw", .culprit = 1}, directory.path());
  for (const RankReport& report : run_processes(good, directory.path())) {
    EXPECT_THAT(report.text, AllOf(HasSubstr("ConfigError"), HasSubstr("give each launch an id of its own")));
  }
}

TEST(GlooRendezvous, RefusesOptionsThatAreWrong) {
  const TemporaryDirectory directory;
  ProcessGroupOptions options;
  options.rendezvous.directory = directory.path().string();
  options.world_size = 2;
  for (const char* id : {"", "a/b", ".."}) {
    options.rendezvous.launch_id = id;
    EXPECT_THROW(connect_gloo(options), ConfigError) << id;
  }
  options.rendezvous.launch_id = "id";
  options.rank = 2;
  EXPECT_THROW(connect_gloo(options), ConfigError);
  options.rank = 0;
  options.rendezvous.directory = "";
  EXPECT_THROW(connect_gloo(options), ConfigError);
  options.rendezvous.kind = Rendezvous::Kind::kRedis;
  options.rendezvous.port = 0;
  EXPECT_THROW(connect_gloo(options), ConfigError);
}

TEST(GlooRendezvous, ByRedisGivesTheSameBits) {
  const TemporaryDirectory directory;
  const int port = free_port();
  const pid_t server = start_process({"redis-server", "--port", std::to_string(port), "--bind", "127.0.0.1", "--save",
                                      "", "--appendonly", "no", "--dir", directory.path().string()});
  if (server < 0) GTEST_SKIP() << "redis-server is not installed";
  ProcessGroupOptions alone;
  alone.rendezvous = {
      .kind = Rendezvous::Kind::kRedis, .directory = "", .host = "127.0.0.1", .port = port, .launch_id = "probe"};
  alone.world_size = 2;
  alone.timeout = 1ms;
  // The loop ends when the server answers; then the error is the missing rank.
  while (::waitpid(server, nullptr, WNOHANG) == 0) {
    try {
      connect_gloo(alone);
    } catch (const ConfigError&) {
      break;
    } catch (const CommError& error) {
      if (std::string(error.what()).find("did not come") != std::string::npos) break;
    }
    std::this_thread::sleep_for(10ms);
  }
  const auto want = local_digests(3, check_conformance);
  const auto reports = run_processes({.world_size = 3, .name = "conformance", .redis_port = port}, directory.path());
  for (std::size_t r = 0; r < reports.size(); ++r) EXPECT_EQ(reports[r].text, want[r]);
  const auto survivors =
      run_processes({.world_size = 3, .name = "world:kill", .culprit = 2, .launch_id = "second", .redis_port = port},
                    directory.path());
  for (const std::size_t r : {0U, 1U}) EXPECT_THAT(survivors[r].text, HasSubstr("rank 2 died or lost its connection"));
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
}

TEST(GlooRendezvous, ByTcpGivesTheSameBitsAndThePortCanBeUsedAgain) {
  const TemporaryDirectory directory;
  const Scenario scenario{.world_size = 3, .name = "conformance", .tcp_port = free_port()};
  const auto want = local_digests(3, check_conformance);
  for (int i = 0; i < 2; ++i) {  // the second launch has the same id: nothing of the first one is left
    const auto reports = run_processes(scenario, directory.path());
    for (std::size_t r = 0; r < reports.size(); ++r) EXPECT_EQ(reports[r].text, want[r]);
  }
  const auto reports =
      run_processes({.world_size = 3, .name = "send_much", .tcp_port = scenario.tcp_port}, directory.path());
  for (const RankReport& report : reports) EXPECT_EQ(report.text, "ok 0");
}

// The store dies or stops with rank 0. That rank is the cause for all ranks, also for those that do not communicate
// with it.
TEST(GlooFailure, EverySurvivorNamesTheRankThatHeldTheTcpStore) {
  for (const Failing& failing : kFailures) {
    std::vector<std::thread> at_once;
    for (const auto& [kind, culprit] : std::vector<std::pair<std::string, int>>{{"world:", 0}, {"world:", 3}}) {
      at_once.emplace_back([&failing, name = kind + failing.how, who = culprit] {
        expect_survivors_name_culprit(
            {.world_size = 4, .name = name, .culprit = who, .timeout = failing.timeout, .tcp_port = free_port()},
            "all_reduce", failing.text);
      });
    }
    for (std::thread& thread : at_once) thread.join();
  }
  for (const auto& [how, timeout, text] : kFailures) {
    if (how == std::string_view("leave")) continue;  // the others go on without it
    if (how == std::string_view("throw") || how == std::string_view("sleep")) continue;
    expect_survivors_name_culprit({.world_size = 4,
                                   .name = "part:" + std::string(how),
                                   .culprit = 0,
                                   .timeout = timeout,
                                   .tcp_port = free_port()},
                                  "all_reduce", text);
  }
}

TEST(GlooRendezvous, AnAbsentRankIsNamedOverTcpToo) {
  const TemporaryDirectory directory;
  for (const int absent : {0, 2}) {
    const auto reports = run_processes(
        {.world_size = 3, .name = "conformance", .timeout = 700ms, .tcp_port = free_port(), .absent = {absent}},
        directory.path());
    for (std::size_t r = 0; r < reports.size(); ++r) {
      if (static_cast<int>(r) == absent) continue;
      EXPECT_THAT(reports[r].text, AllOf(HasSubstr("CommError"), HasSubstr("rank " + std::to_string(absent))));
      EXPECT_THAT(reports[r].text, HasSubstr(absent == 0 ? "Connection refused" : "did not come within 700 ms"));
    }
  }
}

TEST(GlooRendezvous, ARedisThatDoesNotAnswerIsNamed) {
  const TemporaryDirectory directory;
  const int port = free_port();
  const auto reports =
      run_processes({.world_size = 2, .name = "conformance", .timeout = 2s, .redis_port = port}, directory.path());
  for (const RankReport& report : reports) {
    EXPECT_THAT(report.text, HasSubstr("cannot connect to Redis at 127.0.0.1:" + std::to_string(port)));
  }
}

}  // namespace
}  // namespace droptest::comm::gloo_test
