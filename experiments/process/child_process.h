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

/// The end of a process.
struct ExitStatus {
  int code = 0;    ///< exit code if signal is 0
  int signal = 0;  ///< signal that killed it, or 0
  bool succeeded() const { return code == 0 && signal == 0; }
  /// The end in words: "ended with exit code 3", "was killed by signal 9 (Killed)".
  std::string describe() const;
};

/// Owner: the object; its destructor kills and reaps a process that still runs. The kernel kills the process when the
/// thread that started it ends, however it ends. The process has a process group of its own, so that Ctrl-C reaches
/// only the parent, which decides.
class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> arguments;  ///< the program first: its path, or a name in PATH
    /// Variables in addition to, or instead of, this process's variables.
    std::map<std::string, std::string> environment;
    std::string log;  ///< file for its output and errors
    /// Cores on which it and its threads run, as far as the kernel agrees; empty: the cores of this thread.
    std::vector<int> cores{};
    std::vector<std::string> hidden_variables{};  ///< variables of this process's environment that it does not get
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
  /// Whether it is stopped (SIGSTOP) until somebody lets it run.
  bool is_stopped() const;
  /// Waits for the end, at most that long. Blocks.
  std::optional<ExitStatus> wait_for(std::chrono::milliseconds longest);
  /// Lets all threads that it has run on these cores from now on. Does nothing if the kernel does not agree.
  void move_to(const std::vector<int>& cores);
  /// Sends it a signal, if it has not ended.
  void tell(int signal);
  /// Sends a signal to all processes of its process group, if it has not ended.
  void tell_group(int signal);
  /// Asks it to end, and kills it if it has not ended within `grace`. Blocks.
  ExitStatus stop(std::chrono::milliseconds grace);

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  pid_t pid_ = 0;  ///< 0: moved from
  std::optional<ExitStatus> status_;
  /// A second SIGTERM would interrupt what the first one began.
  enum class Told : std::uint8_t { kNothing, kToEnd } told_ = Told::kNothing;
};

/// Changes a process that the kernel kills at the end of its parent, as a ChildProcess: the kernel now asks it to
/// end, by SIGTERM, so that it can end its own children first.
void end_after_parent();

/// The path of this program, to start it again.
std::string this_program();

}  // namespace droptest::experiments
