// SPDX-License-Identifier: Apache-2.0
#include "experiments/process/child_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/file_descriptor.h"
#include "sim/error.h"

extern char** environ;

namespace droptest::experiments {
namespace {

constexpr int kExecFailed = 127;

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& changes,
                                            const std::vector<std::string>& hidden) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (changes.contains(name) || std::find(hidden.begin(), hidden.end(), name) != hidden.end()) continue;
    result.push_back(text);
  }
  for (const auto& [name, value] : changes) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// The kernel's mask of these cores: one bit each.
std::vector<unsigned long> mask_of(const std::vector<int>& cores) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (const int core : cores) {
    const auto bit = static_cast<std::size_t>(core);
    mask.resize(std::max(mask.size(), bit / kBits + 1));
    mask[bit / kBits] |= 1UL << (bit % kBits);
  }
  return mask;
}

/// May be called between fork and exec. A failure is no error, because cores can be taken away at any time.
void run_on(pid_t thread, const std::vector<unsigned long>& mask) {
  if (mask.empty()) return;
  ::sched_setaffinity(thread, mask.size() * sizeof(unsigned long), reinterpret_cast<const cpu_set_t*>(mask.data()));
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

std::string ExitStatus::describe() const {
  if (signal == 0) return "ended with exit code " + std::to_string(code);
  const char* name = ::strsignal(signal);
  return "was killed by signal " + std::to_string(signal) + (name == nullptr ? "" : " (" + std::string(name) + ")");
}

ChildProcess ChildProcess::start(const Options& options) {
  DROPTEST_CHECK(!options.arguments.empty(), "no program to start");
  std::vector<std::string> arguments = options.arguments;
  std::vector<std::string> environment = merged_environment(options.environment, options.hidden_variables);
  // Everything that allocates comes before the fork: after it, the child of a process with threads may not.
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  const std::vector<unsigned long> core_mask = mask_of(options.cores);
  const std::string log_path = options.log.empty() ? "/dev/null" : options.log;
  const comm::FileDescriptor log(
      ::open(log_path.c_str(),
             O_WRONLY | O_CREAT | O_CLOEXEC | (options.log_mode == Options::Log::kNew ? O_TRUNC : O_APPEND), 0666));
  if (!log.is_open()) throw ConfigError(log_path + ": cannot write: " + reason(errno));
  const comm::FileDescriptor input(::open("/dev/null", O_RDONLY | O_CLOEXEC));

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kExecFailed);  // the parent was gone before the request above
    ::setpgid(0, 0);
    run_on(0, core_mask);
    ::signal(SIGINT, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
    ::signal(SIGXFSZ, SIG_DFL);
    ::signal(SIGPIPE, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);  // a rank blocks the signals that end it
    ::dup2(input.value(), STDIN_FILENO);
    ::dup2(log.value(), STDOUT_FILENO);
    ::dup2(log.value(), STDERR_FILENO);
    if (options.kept_descriptor >= 0) ::fcntl(options.kept_descriptor, F_SETFD, 0);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(kExecFailed);
  }
  if (pid < 0) throw CommError("cannot start " + options.arguments[0] + ": " + reason(errno));
  return ChildProcess(pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), status_(std::exchange(other.status_, std::nullopt)), told_(other.told_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(status_, other.status_);
  std::swap(told_, other.told_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ == 0 || status_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::optional<ExitStatus> ChildProcess::poll() {
  if (status_ || pid_ == 0) return status_;
  int status = 0;
  const pid_t result = ::waitpid(pid_, &status, WNOHANG);
  if (result == pid_) {
    status_ = WIFSIGNALED(status) ? ExitStatus{0, WTERMSIG(status)} : ExitStatus{WEXITSTATUS(status), 0};
  } else if (result < 0 && errno != EINTR) {
    status_ = ExitStatus{kExecFailed, 0};
  }
  return status_;
}

bool ChildProcess::is_stopped() const {
  siginfo_t info{};
  if (pid_ == 0 || status_) return false;
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
}

std::optional<ExitStatus> ChildProcess::wait_for(std::chrono::milliseconds longest) {
  const auto deadline = std::chrono::steady_clock::now() + longest;
  while (!poll() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return status_;
}

void ChildProcess::move_to(const std::vector<int>& cores) {
  if (poll() || pid_ == 0) return;
  const std::vector<unsigned long> mask = mask_of(cores);
  // The loop runs twice: a thread that is started meanwhile inherits the cores of the one that starts it.
  for (int pass = 0; pass < 2; ++pass) {
    std::error_code ended;
    std::filesystem::directory_iterator threads("/proc/" + std::to_string(pid_) + "/task", ended);
    for (; !ended && threads != std::filesystem::directory_iterator(); threads.increment(ended)) {
      const std::string name = threads->path().filename().string();
      pid_t thread = 0;
      std::from_chars(name.data(), name.data() + name.size(), thread);
      if (thread > 0) run_on(thread, mask);
    }
  }
}

void ChildProcess::tell(int signal) {
  if (poll()) return;
  ::kill(pid_, signal);
  if (signal == SIGTERM) told_ = Told::kToEnd;
}

void ChildProcess::tell_group(int signal) {
  if (poll() || pid_ == 0) return;
  if (::kill(-pid_, signal) != 0) ::kill(pid_, signal);  // it has not made its group yet
  if (signal == SIGTERM) told_ = Told::kToEnd;
}

ExitStatus ChildProcess::stop(std::chrono::milliseconds grace) {
  if (told_ == Told::kNothing) tell(SIGTERM);
  if (!wait_for(grace)) ::kill(pid_, SIGKILL);
  while (!wait_for(std::chrono::seconds(1))) {
  }
  return *status_;
}

void end_after_parent() {
  int signal = 0;
  if (::prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == SIGKILL) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
}

std::string this_program() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw CommError("cannot find this program's own path: /proc/self/exe: " + error.message());
  return path.string();
}

}  // namespace droptest::experiments
