// SPDX-License-Identifier: Apache-2.0
// Makes writing to a connection that a peer has closed an error of that call, not the end of the process.
#pragma once

#include <signal.h>

namespace droptest::comm {

/// SIGPIPE is blocked for this thread and for the threads that it starts while the object is alive; a SIGPIPE that
/// arose meanwhile is discarded. For libraries that write to sockets without MSG_NOSIGNAL: Gloo and hiredis do.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeBlocked() {
    const timespec now{};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace droptest::comm
