// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/sigterm_watch.h"

#include <unistd.h>

#include <chrono>
#include <exception>

namespace droptest::experiments {
namespace {

using namespace std::chrono_literals;

constexpr auto kPoll = 50ms;
// Time for ranks that know a cause other than the signal: the first cause stands. After the end of a peer, a rank takes
// 300 ms to be sure of the cause; launchers wait a second or more before they kill.
constexpr auto kOthersFirst = 600ms;
constexpr auto kEndMost = 2s;
// Slurm kills 30 s after SIGTERM.
constexpr auto kCheckpointMost = 20s;

/// The signals that end a run. Ignored signals are left out: a blocked signal comes even if it is ignored.
sigset_t end_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  for (const int signal : {SIGHUP, SIGUSR1}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_DFL) sigaddset(&set, signal);
  }
  return set;
}

/// Ends the process as an unhandled signal does.
void end_by_sigterm() {
  sigset_t sigterm;
  sigemptyset(&sigterm);
  sigaddset(&sigterm, SIGTERM);
  ::signal(SIGTERM, SIG_DFL);
  ::kill(::getpid(), SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &sigterm, nullptr);
}

}  // namespace

SigtermWatch::SigtermWatch() : signals_(end_signals()) {
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  thread_ = std::thread([this] { watch(); });
}

SigtermWatch::~SigtermWatch() {
  stop_ = true;
  thread_.join();
  if (std::uncaught_exceptions() == 0) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void SigtermWatch::set_group(comm::Communicator* group) {
  const std::lock_guard lock(mutex_);
  group_ = group;
  had_group_ = true;
}

void SigtermWatch::watch() {
  const timespec poll{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kPoll).count()};
  while (!stop_) {
    if (::sigtimedwait(&signals_, nullptr, &poll) > 0) return end_group();
  }
}

void SigtermWatch::end_group() {
  const auto wait = [this](std::chrono::milliseconds longest) {
    const auto deadline = std::chrono::steady_clock::now() + longest;
    while (!stop_ && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kPoll / 5);
  };
  bool had_group = false;
  {
    const std::lock_guard lock(mutex_);
    had_group = had_group_;
  }
  if (had_group) {
    told_ = true;
    wait(first_ == First::kCheckpoint ? kCheckpointMost : kOthersFirst);
    {
      const std::lock_guard lock(mutex_);
      if (group_ != nullptr) group_->abort("it was told to end (SIGTERM)");
    }
    wait(kEndMost);
  }
  if (!stop_) end_by_sigterm();
}

}  // namespace droptest::experiments
