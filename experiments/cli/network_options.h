// SPDX-License-Identifier: Apache-2.0
// The network section of a spec as options of a command.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/lab/estimate.h"
#include "comm/lossy/network.h"
#include "comm/spec/resolve_network.h"
#include "experiments/cli/number_options.h"

namespace CLI {
class App;
}

namespace droptest::cli {

/// Texts are empty if nothing was given.
struct NetworkOptions {
  std::string command;  ///< name of the command, for messages
  std::string path = "direct";
  int ranks = 8;
  int group_ranks = 0;
  std::uint64_t payload_bytes = 1408;
  std::string loss;
  std::string links;
  std::string reduce_loss;
  std::string gather_loss;
  std::string fill = "zero";
  std::string reduce_fill;
  std::string gather_fill;
  std::string consistency = "per_receiver";
  std::string burst_scope = "link";
  std::string recovery;
  std::uint64_t seed = 1;
};

/// Range of a tensor's elements and of trials, for commands without a spec.
inline constexpr IntegerRange kElements = {1, std::uint64_t{1} << 40};
inline constexpr IntegerRange kTrials = {1, 10000000};

/// Throws: ConfigError if `ranks` tensors of `elements` floats, each `copies` times, do not fit into the free memory.
void require_memory(std::uint64_t elements, int ranks, int copies);

/// Adds all options but the seed's; `options` outlives the command and holds the defaults.
void add_network_options(CLI::App& command, NetworkOptions& options);

/// {"measured", "standard_error", "expected"}; a member without a value is null.
nlohmann::json estimate_json(const comm::Estimate& estimate);

struct ClassNetworkOption {
  comm::ClassNetwork network;
  nlohmann::json resolved;  ///< the network as records write it
};

/// A network with one class, which is lossless if nothing can be lost. The rules are those of a spec. `time`: the time
/// section of a spec with defaults, or null.
/// Throws: ConfigError that names the option, or all errors by their places in the section.
ClassNetworkOption class_network(const NetworkOptions& options, comm::NetworkUse use, const nlohmann::json& time = {});

}  // namespace droptest::cli
