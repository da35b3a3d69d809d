// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/stop_signal.h"

#include <csignal>
#include <initializer_list>

namespace droptest::cli {
namespace {

// The one thing that a signal handler may touch.
volatile std::sig_atomic_t stop_signal = 0;

extern "C" void remember_signal(int signal) { stop_signal = signal; }

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = remember_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_flags = 0;
  for (const int signal : {SIGHUP, SIGUSR1}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

bool stop_requested() { return stop_signal != 0; }

}  // namespace droptest::cli
