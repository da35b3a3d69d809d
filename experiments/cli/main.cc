// SPDX-License-Identifier: Apache-2.0
// The `droptest` command: parses the command line, runs one subcommand, turns errors into a line and an exit code.
#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

#include "comm/rendezvous/launch_environment.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/known_names.h"
#include "experiments/files/file_lock.h"
#include "experiments/process/last_words.h"
#include "experiments/records/provenance.h"
#include "experiments/run/execute_run.h"
#include "models/process_settings.h"
#include "sim/error.h"

namespace {

/// Prints each line of the message after the program's name: a spec can be wrong in several places.
void print_error(const std::string& message) {
  droptest::experiments::speak_to_parent(message);
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) std::cerr << "droptest: error: " << line << "\n";
}

/// Opens standard streams that are closed. Otherwise the first file that is opened would take the number of such a
/// stream, and get its text.
void open_closed_streams() {
  for (int number = 0; number <= 2; ++number) {
    if (::fcntl(number, F_GETFD) < 0) (void)::open("/dev/null", O_RDWR);
  }
}

/// Whether a launcher started this process as one of several ranks.
bool is_one_of_several() {
  try {
    const auto launch = droptest::comm::launch_environment(droptest::comm::process_environment());
    return launch && launch->world_size > 1;
  } catch (const droptest::ConfigError&) {
    return false;
  }
}

/// Ends the program without unwinding: after an error, a rank thread that stalled may still be using live objects.
[[noreturn]] void end_at_once(int code) {
  std::cout.flush();
  std::cerr.flush();
  // mpirun kills all ranks when the second one has ended: the other ranks get time to print their errors.
  if (is_one_of_several()) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::_Exit(code);
}

std::string version_text() {
  const droptest::experiments::Provenance build = droptest::experiments::build_provenance();
  return "droptest " + build.version + " (" + build.commit + ")";
}

}  // namespace

int main(int argc, char** argv) {
  using namespace droptest::cli;
  open_closed_streams();
  droptest::models::keep_freed_memory();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is an error of its writer
  CLI::App app{
      "Trains GPT-2 with tensor, data, pipeline and sequence parallelism over collectives whose packets get lost.\n"
      "A spec says what to run (docs/specs.md); JSON records come out (docs/records.md).",
      "droptest"};
  app.set_version_flag("--version", version_text());
  app.footer(
      "Examples:\n"
      "  droptest validate experiments/specs/quickstart.json\n"
      "  droptest sweep experiments/specs/quickstart.json\n"
      "  droptest report results/quickstart\n"
      "  droptest fates --loss '{\"model\": \"bernoulli\", \"loss_rate\": \"5%\"}' --seed 1 --class tp_forward \\\n"
      "    --src 0 --dst 1 --first 0 --count 100\n"
      "`droptest COMMAND --help` explains a command.");
  Action chosen;
  add_commands(app, chosen);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::string unknown = unknown_arguments(app);
    print_error(unknown.empty() ? error.what() : unknown);
    const auto commands = app.get_subcommands();
    std::cerr << "droptest: see droptest " << (commands.empty() ? "" : commands.front()->get_name() + " ")
              << "--help\n";
    return kExitUserError;
  }
  try {
    const int code = chosen();
    errno = 0;
    std::cout.flush();
    if (std::fflush(stdout) == 0 && std::cout) return code;
    print_error("standard output cannot be written" +
                (errno == 0 ? std::string() : ": " + std::generic_category().message(errno)));
    return code == kExitSuccess ? kExitFailedRun : code;
  } catch (const droptest::ConfigError& error) {
    print_error(error.what());
    end_at_once(kExitUserError);
  } catch (const droptest::experiments::StoppedError&) {  // the command has reported it
    end_at_once(kExitInterrupted);
  } catch (const droptest::experiments::BusyError& error) {
    print_error(error.what());
    end_at_once(kExitBusy);
  } catch (const std::exception& error) {
    print_error(error.what());
    end_at_once(kExitFailedRun);
  }
}
