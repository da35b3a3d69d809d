// SPDX-License-Identifier: Apache-2.0
#include "experiments/process/program_output.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include "comm/file_descriptor.h"
#include "experiments/process/program_path.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// A pipe; this process reads one end. Both ends close themselves.
class OutputPipe {
 public:
  OutputPipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw CommError("pipe: " + std::generic_category().message(errno));
    read_ = comm::FileDescriptor(ends[0]);
    write_ = comm::FileDescriptor(ends[1]);
  }

  int read_end() const { return read_.value(); }
  int write_end() const { return write_.value(); }
  void close_write_end() { (void)write_.close(); }
  /// Appends a piece to `text`, or closes the pipe at its end.
  void take(std::string& text) {
    std::array<char, 4096> piece{};
    const ssize_t got = ::read(read_end(), piece.data(), piece.size());
    if (got > 0) {
      text.append(piece.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      (void)read_.close();  // poll() skips it
    }
  }

 private:
  comm::FileDescriptor read_;
  comm::FileDescriptor write_;
};

}  // namespace

ProgramOutput run_program(const std::vector<std::string>& arguments) {
  OutputPipe output;
  OutputPipe errors;
  posix_spawn_file_actions_t actions{};
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output.write_end(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, errors.write_end(), STDERR_FILENO);
  std::vector<std::string> words = arguments;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t pid = 0;
  const int failure = ::posix_spawnp(&pid, pointers[0], &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) {
    throw ConfigError("cannot start " + arguments[0] + ": " + std::generic_category().message(failure));
  }
  output.close_write_end();
  errors.close_write_end();

  ProgramOutput result;
  while (output.read_end() >= 0 || errors.read_end() >= 0) {
    std::array<pollfd, 2> ready = {{{output.read_end(), POLLIN, 0}, {errors.read_end(), POLLIN, 0}}};
    if (::poll(ready.data(), ready.size(), -1) < 0) continue;
    if (ready[0].revents != 0) output.take(result.output);
    if (ready[1].revents != 0) errors.take(result.errors);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

std::string path_of_program(const std::string& name) {
  if (const std::optional<std::string> path = program_path(name)) return *path;
  const char* const folders = std::getenv("PATH");
  throw ConfigError("cannot find " + name + " in the folders of PATH: got " + (folders == nullptr ? "" : folders));
}

}  // namespace droptest::experiments
