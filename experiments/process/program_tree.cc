// SPDX-License-Identifier: Apache-2.0
#include "experiments/process/program_tree.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

namespace droptest::experiments {
namespace {

constexpr std::chrono::milliseconds kTreePollInterval{10};
// Longest wait for processes that the kernel holds, as in a read of a disk.
constexpr std::chrono::milliseconds kKillPatience{2000};

ChildProcess start_below_this_one(const ChildProcess::Options& options) {
  adopt_orphans();
  return ChildProcess::start(options);
}

struct ProcessFacts {
  pid_t parent = 0;
  char state = 'Z';
};

/// Reads /proc/<pid>/stat: "12 (a name) S 1 ..."; the name may have spaces and brackets.
ProcessFacts facts_of(const std::string& stat_text) {
  ProcessFacts facts;
  const std::size_t end = stat_text.rfind(')');
  if (end == std::string::npos) return facts;
  std::istringstream rest(stat_text.substr(end + 1));
  rest >> facts.state >> facts.parent;
  return facts;
}

std::map<pid_t, ProcessFacts> all_processes() {
  std::map<pid_t, ProcessFacts> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) == 0) continue;
    std::ifstream file(entry->path() / "stat");
    std::string text;
    if (std::getline(file, text, '\0')) found[static_cast<pid_t>(std::stol(name))] = facts_of(text);
  }
  return found;
}

}  // namespace

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

void kill_descendants_with(const std::string& variable, const std::string& value) {
  const std::string zero(1, '\0');
  const std::string wanted = zero + variable + "=" + value + zero;
  const auto has_it = [&](pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
    const std::string environment((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return (zero + environment).find(wanted) != std::string::npos;
  };
  // A process that is killed may just have started another one.
  const auto deadline = std::chrono::steady_clock::now() + kKillPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    std::vector<pid_t> left = descendants();
    std::erase_if(left, [&has_it](pid_t pid) { return !has_it(pid); });
    if (left.empty()) return;
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(kTreePollInterval);
    for (const pid_t pid : left) ::waitpid(pid, nullptr, WNOHANG);
  }
}

std::vector<pid_t> descendants() {
  std::map<pid_t, std::vector<pid_t>> children;
  const std::map<pid_t, ProcessFacts> all = all_processes();
  for (const auto& [pid, facts] : all) children[facts.parent].push_back(pid);
  std::vector<pid_t> found;
  std::vector<pid_t> parents = {::getpid()};
  while (!parents.empty()) {
    const pid_t parent = parents.back();
    parents.pop_back();
    for (const pid_t child : children[parent]) {
      parents.push_back(child);
      if (all.at(child).state != 'Z') found.push_back(child);
    }
  }
  return found;
}

ProgramTree::ProgramTree(const ChildProcess::Options& options) : program_(start_below_this_one(options)) {}

ProgramTree::~ProgramTree() { stop(std::chrono::milliseconds(0)); }

bool ProgramTree::wait_for_all(std::chrono::milliseconds longest) {
  const auto deadline = std::chrono::steady_clock::now() + longest;
  for (;;) {
    // The program is polled first, since orphans are reaped below: the program's status is for its owner.
    const bool has_ended = program_.poll().has_value();
    if (has_ended) {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
    }
    if (has_ended && descendants().empty()) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kTreePollInterval);
  }
}

void ProgramTree::stop(std::chrono::milliseconds grace) {
  if (grace.count() > 0) {
    const auto until = std::chrono::steady_clock::now() + grace;
    program_.tell_group(SIGTERM);
    program_.wait_for(grace);  // a launcher ends its ranks itself
    for (const pid_t pid : descendants()) ::kill(pid, SIGTERM);
    if (wait_for_all(std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()))) return;
  }
  // A process that is killed may just have started another one.
  const auto deadline = std::chrono::steady_clock::now() + kKillPatience;
  do {
    for (const pid_t pid : descendants()) ::kill(pid, SIGKILL);
  } while (!wait_for_all(kTreePollInterval) && std::chrono::steady_clock::now() < deadline);
}

void ProgramTree::end_rest(std::chrono::milliseconds patience, std::chrono::milliseconds grace) {
  if (!wait_for_all(patience)) stop(grace);
}

}  // namespace droptest::experiments
