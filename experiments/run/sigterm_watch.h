// SPDX-License-Identifier: Apache-2.0
// A launcher that loses one rank ends the others by SIGTERM, often before they could report the cause.
#pragma once

#include <signal.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "comm/communicator.h"

namespace droptest::experiments {

/// While alive, SIGTERM does not end this process at once. Where a group is protected, SIGTERM ends the group instead,
/// with the cause that its ranks have found, if there is one: so this rank's error names it, and its records are
/// written. A process that does not come to its end within two seconds is then ended by the signal, as is one without a
/// group. Destroyed by an exception, it leaves the signal blocked: the process is about to say why it ends. Made before
/// the process starts other threads, which leave the signal to this object.
class SigtermWatch {
 public:
  /// While alive, the group is protected, unless released before.
  class Protection {
   public:
    Protection(SigtermWatch& watch, comm::Communicator& group) : watch_(watch) { watch_.set_group(&group); }
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

 private:
  void set_group(comm::Communicator* group);
  void watch();
  void end_group();

  sigset_t before_{};
  std::mutex mutex_;  ///< guards group_ and had_group_
  comm::Communicator* group_ = nullptr;
  bool had_group_ = false;  ///< a process whose group has been released is on its way to its end
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace droptest::experiments
