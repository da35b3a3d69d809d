// SPDX-License-Identifier: Apache-2.0
// A rank's state as bytes: a checksum, the origin of the state, and the values.
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "api/argument_error.h"
#include "api/rank_network.h"
#include "experiments/checkpoint/state_bytes.h"
#include "experiments/files/crc32c.h"
#include "sim/error.h"

using droptest::ConfigError;
using droptest::experiments::crc32c;

namespace {

constexpr char kWhere[] = "state";
constexpr std::uint32_t kVersion = 2;

std::string owner(std::uint64_t seed, int rank, int world_size) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(world_size) + " with seed " + std::to_string(seed);
}

/// The network and rank that a state belongs to.
struct Origin {
  std::uint32_t version = kVersion;
  std::uint64_t seed = 0;
  int rank = 0;
  int world_size = 0;
  std::string classes;  // JSON of the networks by class

  static Origin of(const droptest_network& network) {
    return {kVersion, network.program.network.seed, network.rank, network.world_size, network.program.classes->dump()};
  }
  void visit_state(droptest::sim::StateVisitor& visitor) {
    visit_values(visitor, version, seed, rank, world_size, classes);
  }
  /// Throws: ConfigError if it is not this network's.
  void check(const Origin& wanted) const {
    const std::string where = std::string(kWhere) + ": got ";
    if (version != wanted.version) {
      throw ConfigError(where + "version " + std::to_string(version) + ", want " + std::to_string(wanted.version));
    }
    if (seed != wanted.seed || rank != wanted.rank || world_size != wanted.world_size) {
      throw ConfigError(where + "that of " + owner(seed, rank, world_size) + ", want that of " +
                        owner(wanted.seed, wanted.rank, wanted.world_size));
    }
    if (classes != wanted.classes) {
      throw ConfigError(where + "that of the network " + classes + ", want that of " + wanted.classes);
    }
  }
};

void visit_all(droptest::sim::StateVisitor& visitor, droptest_network& network) {
  visit_values(visitor, network.step, network.ledger, network.verdicts, network.exempt);
}

}  // namespace

std::vector<std::byte> droptest_network::save_state() {
  for (const auto& [key, group] : groups) {
    if (group.unfinished.empty()) continue;
    throw droptest::api::ArgumentError("state: got " + std::to_string(group.unfinished.size()) +
                                       " sums whose results are not scaled yet, want it saved between steps");
  }
  droptest::experiments::StateSaver saver;
  std::uint32_t checksum = 0;
  Origin origin = Origin::of(*this);
  visit_values(saver, checksum, origin);
  visit_all(saver, *this);
  std::vector<std::byte> bytes = saver.take();
  checksum = crc32c(std::span<const std::byte>(bytes).subspan(sizeof checksum));
  std::memcpy(bytes.data(), &checksum, sizeof checksum);
  return bytes;
}

void droptest_network::load_state(std::span<const std::byte> bytes) {
  std::uint32_t checksum = 0;
  if (bytes.size() < sizeof checksum) {
    throw ConfigError("state: got " + std::to_string(bytes.size()) + " bytes, want those of a saved state");
  }
  std::memcpy(&checksum, bytes.data(), sizeof checksum);
  const std::span<const std::byte> values = bytes.subspan(sizeof checksum);
  if (checksum != crc32c(values)) throw ConfigError("state: got damaged bytes (checksum), want those of a saved state");
  droptest::experiments::StateRestorer restorer(values, kWhere);
  Origin origin;
  visit_value(restorer, origin);
  origin.check(Origin::of(*this));
  const droptest::experiments::StateRestorer after_origin = restorer;
  droptest_network whole(program, rank, world_size);  // so that a state with another layout changes nothing here
  visit_all(restorer, whole);
  restorer.finish();
  restorer = after_origin;
  visit_all(restorer, *this);
}
