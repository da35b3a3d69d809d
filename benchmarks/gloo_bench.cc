// SPDX-License-Identifier: Apache-2.0
// All-reduces between processes on one machine, in turns: Gloo's own halving-doubling, this project's `gloo` backend,
// and the loss layer over that backend. Prints one JSON object with milliseconds and ratios.
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/backend_registry.h"
#include "comm/lossy/lossy_communicator.h"
#include "sim/loss/bernoulli.h"

namespace droptest {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

struct Options {
  int ranks = 4;
  int rounds = 9;
  double loss_rate = 0.01;
  std::vector<std::uint64_t> bytes = {1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216};
};

comm::LossyOptions lossy_options(std::string_view path, double loss_rate) {
  comm::ClassNetwork network;
  network.path = path;
  comm::apply_loss(network, std::make_shared<sim::Bernoulli>(loss_rate));
  comm::apply_fill(network, comm::Fill::kCountRescale);
  comm::LossyOptions options;
  options.network.seed = 1;
  options.network.of(sim::TrafficClass::kTpForward) = network;
  return options;
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

// One rank, which runs all contestants. Rank 0 returns the results.
ordered_json measure(const Options& options, int rank, const std::string& folder) {
  comm::ProcessGroupOptions group_options;
  group_options.rank = rank;
  group_options.world_size = options.ranks;
  group_options.rendezvous.directory = folder;
  group_options.rendezvous.launch_id = "gloo_bench";
  const std::unique_ptr<comm::Communicator> bare = comm::backend_entry("gloo").connect(group_options);
  comm::LossyCommunicator contribution(*bare, lossy_options("contribution", options.loss_rate));
  comm::LossyCommunicator direct(*bare, lossy_options("direct", options.loss_rate));

  auto plain = std::make_shared<gloo::rendezvous::Context>(rank, options.ranks);
  gloo::rendezvous::FileStore store(folder);
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  plain->connectFullMesh(store, device);

  const comm::Message message{sim::TrafficClass::kTpForward, "sum", 0};
  ordered_json rows = ordered_json::array();
  for (const std::uint64_t bytes : options.bytes) {
    std::vector<float> data(bytes / sizeof(float), 1.0F);
    const comm::Tensor tensor{std::span(data)};
    gloo::AllreduceHalvingDoubling<float> halving_doubling(plain, {data.data()}, static_cast<int>(data.size()));
    const std::vector<std::pair<std::string, std::function<void()>>> contestants = {
        {"plain_gloo", [&] { halving_doubling.run(); }},
        {"gloo", [&] { bare->all_reduce(tensor, comm::ReduceOp::kSum, message); }},
        {"contribution", [&] { contribution.all_reduce(tensor, comm::ReduceOp::kSum, message); }},
        {"direct", [&] { direct.all_reduce(tensor, comm::ReduceOp::kSum, message); }},
    };
    const int calls = static_cast<int>(std::clamp<std::uint64_t>((std::uint64_t{16} << 20) / bytes, 4, 100));
    std::map<std::string, std::vector<double>> milliseconds;
    for (int round = 0; round <= options.rounds; ++round) {
      for (const auto& [name, run] : contestants) {
        std::ranges::fill(data, 1.0F);
        bare->barrier({.name = "turn"});
        const Clock::time_point begin = Clock::now();
        for (int call = 0; call < calls; ++call) run();
        const double each = std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / calls;
        if (round > 0) milliseconds[name].push_back(each);  // the first round touches memory for the first time
      }
    }
    ordered_json row = {{"bytes", bytes}};
    for (const auto& [name, run] : contestants) row[name + "_ms"] = median(milliseconds[name]);
    const auto ratio = [&](const std::string& name, const std::string& to) {
      std::vector<double> ratios;
      for (int r = 0; r < options.rounds; ++r) {
        ratios.push_back(milliseconds[name][static_cast<std::size_t>(r)] /
                         milliseconds[to][static_cast<std::size_t>(r)]);
      }
      row[name + "_over_" + to] = median(ratios);
    };
    ratio("gloo", "plain_gloo");
    ratio("contribution", "gloo");
    ratio("direct", "gloo");
    rows.push_back(row);
  }
  return rows;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("All-reduces of processes on one machine: Gloo's own, the gloo backend, and the loss layer over it");
  app.add_option("--ranks", options.ranks, "processes")->capture_default_str()->check(CLI::Range(2, 64));
  app.add_option("--rounds", options.rounds, "turns of each contestant")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--loss-rate", options.loss_rate, "of each packet, 0 to 1")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--bytes", options.bytes, "of a rank's data, multiples of 4 per rank")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  std::string folder = (std::filesystem::temp_directory_path() / "gloo_bench_XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) {
    std::cerr << "gloo_bench: cannot make a folder " << folder << "\n";
    return 1;
  }
  std::vector<::pid_t> peers;
  for (int rank = 1; rank < options.ranks; ++rank) {
    const ::pid_t pid = ::fork();
    if (pid == 0) {
      measure(options, rank, folder);
      ::_exit(0);
    }
    peers.push_back(pid);
  }
  const ordered_json rows = measure(options, 0, folder);
  int failed = 0;
  for (const ::pid_t pid : peers) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    failed |= status;
  }
  std::filesystem::remove_all(folder);
  std::cout << ordered_json{{"ranks", options.ranks}, {"loss_rate", options.loss_rate}, {"sizes", rows}}.dump(1)
            << "\n";
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace droptest

int main(int argc, char** argv) { return droptest::run(argc, argv); }
