// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/rank_processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "tests/comm/turn_clock.h"

namespace droptest::comm {
namespace {

using namespace std::chrono_literals;

// Only a hang takes this long; everything that is awaited takes seconds.
constexpr auto kHang = 60s;

// Leaves it to be waited for.
bool has_ended(pid_t process) {
  siginfo_t end{};
  return ::waitid(P_PID, static_cast<id_t>(process), &end, WEXITED | WNOHANG | WNOWAIT) != 0 || end.si_pid != 0;
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "droptest.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

pid_t start_process(const std::vector<std::string>& arguments) {
  std::vector<char*> words;
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

std::vector<RankReport> run_processes(const Scenario& scenario, const std::filesystem::path& directory) {
  const auto is_absent = [&](int rank) {
    return std::find(scenario.absent.begin(), scenario.absent.end(), rank) != scenario.absent.end();
  };
  const auto output_of = [&](int rank) { return (directory / ("report." + std::to_string(rank))).string(); };
  std::vector<RankReport> reports(static_cast<std::size_t>(scenario.world_size));
  std::vector<pid_t> running(reports.size(), -1);
  const std::string turns_file = (directory / "turns").string();
  Turns::create(turns_file, scenario.world_size);
  Turns turns(turns_file, scenario.world_size);
  for (int rank = 0; rank < scenario.world_size; ++rank) {
    std::filesystem::remove(output_of(rank));
    if (is_absent(rank)) {
      turns.leave(rank);
      continue;
    }
    const int port = std::max(scenario.redis_port, scenario.tcp_port);
    running[static_cast<std::size_t>(rank)] =
        start_process({DROPTEST_GLOO_RANK_MAIN, std::to_string(rank), std::to_string(scenario.world_size),
                       std::to_string(scenario.timeout.count()),
                       scenario.redis_port != 0 ? "redis"
                       : scenario.tcp_port != 0 ? "tcp"
                                                : "file",
                       port != 0 ? std::to_string(port) : (directory / "rendezvous").string(), scenario.launch_id,
                       scenario.name, std::to_string(scenario.culprit), output_of(rank), turns_file});
  }
  if (scenario.held_back >= 0) {
    const pid_t held = running[static_cast<std::size_t>(scenario.held_back)];
    ::kill(held, SIGSTOP);
    const auto until = 2 * static_cast<std::uint64_t>(scenario.timeout.count());
    while (turns.of(0) < until && !has_ended(running[0])) std::this_thread::sleep_for(5ms);
    ::kill(held, SIGCONT);
  }
  const auto give_up = std::chrono::steady_clock::now() + kHang;
  const auto awaited = [&](std::size_t rank) {
    return running[rank] > 0 && static_cast<int>(rank) != scenario.culprit;
  };
  for (;;) {
    bool all_ended = true;
    for (std::size_t rank = 0; rank < running.size(); ++rank) {
      if (running[rank] > 0 && ::waitpid(running[rank], &reports[rank].wait_status, WNOHANG) == running[rank]) {
        running[rank] = -1;
        turns.leave(static_cast<int>(rank));
      }
      all_ended = all_ended && !awaited(rank);
    }
    if (all_ended || std::chrono::steady_clock::now() > give_up) break;
    std::this_thread::sleep_for(5ms);
  }
  for (std::size_t rank = 0; rank < running.size(); ++rank) {
    if (running[rank] > 0) {
      if (awaited(rank)) ADD_FAILURE() << scenario.name << ": rank " << rank << " hangs";
      ::kill(running[rank], SIGKILL);
      ::waitpid(running[rank], nullptr, 0);
    }
    std::ifstream file(output_of(static_cast<int>(rank)));
    reports[rank].text.assign(std::istreambuf_iterator<char>(file), {});
  }
  return reports;
}

}  // namespace droptest::comm
