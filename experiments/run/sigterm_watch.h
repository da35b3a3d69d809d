// SPDX-License-Identifier: Apache-2.0
// A launcher that loses one rank ends the others by SIGTERM, often before they could report the cause.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

#include "comm/communicator.h"

namespace droptest::experiments {

/// While it lives, SIGTERM does not end this process at once. SIGHUP and SIGUSR1 (sbatch --signal) count as SIGTERM,
/// unless they are ignored or handled.
/// If a group is protected, SIGTERM ends the group, with the cause that its ranks have found, if there is one: so this
/// rank's error names the cause, and its records are written. If the process does not come to its end within two
/// seconds, the signal ends it. The signal also ends a process without a group.
/// Make it before the process starts other threads, which leave the signal to this object. If an exception destroys
/// it, the signal stays blocked: the process is about to report why it ends.
class SigtermWatch {
 public:
  /// The work before the end of the group: none, or a checkpoint. The run takes it once was_told(), within 20 seconds.
  enum class First : std::uint8_t { kNothing, kCheckpoint };

  /// While it lives, the group is protected, unless it is released before.
  class Protection {
   public:
    Protection(SigtermWatch& watch, comm::Communicator& group, First first = First::kNothing) : watch_(watch) {
      watch_.first_ = first;
      watch_.set_group(&group);
    }
    ~Protection() { watch_.release(); }
    Protection(const Protection&) = delete;
    Protection& operator=(const Protection&) = delete;

   private:
    SigtermWatch& watch_;
  };

  SigtermWatch();
  ~SigtermWatch();
  SigtermWatch(const SigtermWatch&) = delete;
  SigtermWatch& operator=(const SigtermWatch&) = delete;

  /// The protected group may end now.
  void release() { set_group(nullptr); }
  /// Whether one of the signals has come.
  bool was_told() const { return told_; }

 private:
  void set_group(comm::Communicator* group);
  void watch();
  void end_group();

  const sigset_t signals_;
  sigset_t before_{};
  std::mutex mutex_;  ///< guards group_ and had_group_
  comm::Communicator* group_ = nullptr;
  bool had_group_ = false;  ///< stays true after release(): the process is on its way to its end
  std::atomic<First> first_ = First::kNothing;
  std::atomic<bool> told_ = false;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace droptest::experiments
