// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/rank_program.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>

#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr unsigned kWatchdogSeconds = 100;

}  // namespace

int rank_main(const std::vector<std::string>& arguments, const RankBody& body) {
  ::alarm(kWatchdogSeconds);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ProcessGroupOptions options;
  options.rank = std::stoi(arguments.at(0));
  options.world_size = std::stoi(arguments.at(1));
  options.timeout = std::chrono::milliseconds(std::stoi(arguments.at(2)));
  if (arguments.at(3) != "file") {
    options.rendezvous.kind = arguments.at(3) == "redis" ? Rendezvous::Kind::kRedis : Rendezvous::Kind::kTcp;
    options.rendezvous.port = std::stoi(arguments.at(4));
  } else {
    options.rendezvous.directory = arguments.at(4);
  }
  options.rendezvous.launch_id = arguments.at(5);
  Turns turns(arguments.at(9), options.world_size);
  TurnClock clock(turns, options.rank);
  options.clock = &clock;
  std::string result;
  int status = 0;
  try {
    result = "ok " + std::to_string(body(options, clock, {arguments.at(6), std::stoi(arguments.at(7))}));
  } catch (const CommError& error) {
    result = std::string("error CommError: ") + error.what();
    status = 2;
  } catch (const ConfigError& error) {
    result = std::string("error ConfigError: ") + error.what();
    status = 2;
  } catch (const std::exception& error) {
    result = std::string("error other: ") + error.what();
    status = 2;
  }
  std::ofstream(arguments.at(8)) << result;
  return status;
}

std::uint64_t with_communicator(const ProcessGroupOptions& options,
                                const std::function<std::uint64_t(Communicator&)>& body) {
  const auto communicator = backend_entry("gloo").connect(options);
  try {
    return body(*communicator);
  } catch (const std::exception& error) {
    communicator->abort(error.what());
    throw;
  }
}

void misbehave(TurnClock& clock, std::string_view how) {
  if (how == "kill") ::raise(SIGKILL);
  if (how == "exit") ::_exit(3);
  if (how == "throw") throw std::domain_error("loss is not a number");
  if (how == "stop") {
    clock.rest();
    ::raise(SIGSTOP);
  }
  while (how == "sleep") ::pause();
}

}  // namespace droptest::comm
