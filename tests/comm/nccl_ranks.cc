// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/nccl_ranks.h"

#include <exception>
#include <memory>
#include <optional>
#include <thread>

#include "comm/nccl/nccl_backend.h"
#include "sim/error.h"
#include "tests/comm/rank_processes.h"
#include "tests/comm/turn_clock.h"
#include "tests/fake_nccl/fake_streams.h"

namespace droptest::comm {
namespace {

std::string run_rank(const ProcessGroupOptions& options, const Body& body) {
  std::optional<Stream> stream;  // outlives the communicator, which may hold messages of it
  std::unique_ptr<Communicator> communicator;
  try {
    communicator = connect_nccl(options);
    stream.emplace(fake_nccl::current_device());
    body(*communicator, *stream);
    communicator.reset();
    return "ok";
  } catch (const std::exception& error) {
    if (communicator != nullptr) communicator->abort(error.what());
    communicator.reset();
    const std::string type = dynamic_cast<const CommError*>(&error) != nullptr     ? "CommError: "
                             : dynamic_cast<const ConfigError*>(&error) != nullptr ? "ConfigError: "
                             : dynamic_cast<const DeviceError*>(&error) != nullptr ? "DeviceError: "
                                                                                   : "";
    return type + error.what();
  }
}

}  // namespace

std::vector<std::string> run_nccl_ranks(const Ranks& ranks, const Body& body) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "turns";
  Turns::create(file, 1);
  Turns turns(file, 1);
  const TurnClock clock(turns, 0);
  fake_nccl::set_devices(ranks.devices > 0 ? ranks.devices : ranks.world_size);
  std::vector<std::string> ends(static_cast<std::size_t>(ranks.world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks.world_size; ++rank) {
    threads.emplace_back([&, rank] {
      ProcessGroupOptions options;
      options.rank = rank;
      options.world_size = ranks.world_size;
      options.timeout = ranks.timeout;
      options.clock = &clock;
      options.rendezvous.directory = directory.path().string();
      options.rendezvous.launch_id = "test";
      ends[static_cast<std::size_t>(rank)] = run_rank(options, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

}  // namespace droptest::comm
