// SPDX-License-Identifier: Apache-2.0
// A process that this one started, and that never outlives it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace droptest::experiments {

/// How a process ended.
struct ExitStatus {
  int code = 0;    ///< where signal is 0
  int signal = 0;  ///< that killed it, or 0
  bool succeeded() const { return code == 0 && signal == 0; }
  /// "ended with exit code 3", "was killed by signal 9 (Killed)".
  std::string describe() const;
};

/// Owner: the object; its destructor kills and reaps a process that still runs. The kernel kills the process when the
/// thread that started it ends, however it ends. It has a process group of its own, so that Ctrl-C reaches the parent
/// alone, which decides.
class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> arguments;              ///< the program first: its path, or a name in PATH
    std::map<std::string, std::string> environment;  ///< added to, or instead of, this process's variables
    std::string log;                                 ///< file for its output and errors
    /// It and its threads run on these alone, as far as the kernel agrees; empty: where this thread may run.
    std::vector<int> cores{};
    std::vector<std::string> hidden_variables{};  ///< of this process's environment, that it does not get
    int kept_descriptor = -1;                     ///< open file that it and its own children get under the same number
    enum class Log : std::uint8_t { kNew, kAppend } log_mode = Log::kNew;
  };

  /// Throws: CommError naming the program and the system's reason.
  static ChildProcess start(const Options& options);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  /// The status once it has ended; does not block.
  std::optional<ExitStatus> poll();
  /// Whether it runs no further until somebody lets it (SIGSTOP).
  bool is_stopped() const;
  /// Blocks at most that long.
  std::optional<ExitStatus> wait_for(std::chrono::milliseconds longest);
  /// Lets it run on these cores from now on, all threads that it has. Does nothing where the kernel does not agree.
  void move_to(const std::vector<int>& cores);
  /// Sends it a signal, if it has not ended.
  void tell(int signal);
  /// Sends it to all processes of its process group, if it has not ended.
  void tell_group(int signal);
  /// Asks it to end, and kills it where it has not within `grace`. Blocks.
  ExitStatus stop(std::chrono::milliseconds grace);

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  pid_t pid_ = 0;  ///< 0: moved from
  std::optional<ExitStatus> status_;
  /// A second SIGTERM would interrupt what the first one began.
  enum class Told : std::uint8_t { kNothing, kToEnd } told_ = Told::kNothing;
};

/// Where the kernel kills this process at the end of its parent, as a ChildProcess: from now on it asks it to end, by
/// SIGTERM, so that it can end its own children first.
void end_after_parent();

/// The path of this program, to start it again.
std::string this_program();

}  // namespace droptest::experiments
