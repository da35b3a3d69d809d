// SPDX-License-Identifier: Apache-2.0
#include "api/rank_statistics.h"

#include <cerrno>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "api/network_identity.h"
#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "experiments/files/atomic_file.h"
#include "experiments/files/file_lock.h"
#include "experiments/records/loss_statistics_record.h"
#include "sim/error.h"

namespace droptest::api {
namespace {

using nlohmann::json;
using Words = std::vector<std::uint64_t>;

constexpr int kSchemaVersion = 2;

std::string rank_file(const std::string& folder, int rank) {
  return folder + "/ranks/" + std::to_string(rank) + ".json";
}

std::string digest_of(const droptest_network& network) { return comm::network_digest_text(network.program.identity); }

ExemptByReason exempt_of(const json& exempt) {
  ExemptByReason counts{};
  for (std::size_t reason = 0; reason < kExemptionNames.size(); ++reason) {
    if (!exempt.contains(kExemptionNames[reason])) continue;
    const json& of_reason = exempt.at(std::string(kExemptionNames[reason]));
    counts[reason] = {of_reason.at("calls").get<std::uint64_t>(), of_reason.at("bytes").get<std::uint64_t>()};
  }
  return counts;
}

json exempt_json(const ExemptByReason& exempt) {
  json out = json::object();
  for (std::size_t reason = 0; reason < kExemptionNames.size(); ++reason) {
    if (exempt[reason].calls == 0) continue;
    out[std::string(kExemptionNames[reason])] = {{"calls", exempt[reason].calls}, {"bytes", exempt[reason].bytes}};
  }
  return out;
}

json merged(const droptest_network& network, const std::vector<Words>& words, const ExemptByReason& exempt,
            std::vector<int> missing) {
  const comm::Network& of = network.program.network;
  json out = experiments::loss_statistics_json(comm::merge_statistics(words, of, comm::LinkDetail::kInclude), of);
  out["network"] = {{"seed", of.seed}, {"digest", digest_of(network)}, {"classes", json::object()}};
  for (const auto& [name, counts] : out["classes"].items()) {
    out["network"]["classes"][name] = network.program.classes->at(name);
  }
  out["exempt"] = exempt_json(exempt);
  out["ranks"] = {{"world_size", network.world_size}, {"missing", std::move(missing)}};
  return out;
}

struct OfRank {
  Words words;
  ExemptByReason exempt{};
};

// Absent if there is no file, or a file of an earlier program: of another world or network. Throws: ConfigError for a
// file that this rank has not written.
std::optional<OfRank> read_rank(const std::string& folder, int rank, const droptest_network& network) {
  const std::string file = rank_file(folder, rank);
  if (!std::filesystem::exists(file)) return std::nullopt;
  const json record = comm::load_json(file);
  try {
    if (record.at("world_size") != network.world_size || record.at("seed") != network.program.network.seed) {
      return std::nullopt;
    }
    if (const json& version = record.at("schema_version"); version != kSchemaVersion) {
      throw ConfigError("/schema_version: got " + version.dump() + ", want " + std::to_string(kSchemaVersion));
    }
    if (record.value("network", "") != digest_of(network)) return std::nullopt;
    if (const json& of_file = record.at("rank"); of_file != rank) {
      throw ConfigError("/rank: got " + of_file.dump() + ", want " + std::to_string(rank));
    }
    OfRank of_rank{record.at("words").get<Words>(), exempt_of(record.at("exempt"))};
    comm::merge_statistics({&of_rank.words, 1}, network.program.network, comm::LinkDetail::kInclude);
    return of_rank;
  } catch (const std::exception& error) {
    throw ConfigError(file + ": got a file that is not the counts of a rank, want it removed (" + error.what() + ")");
  }
}

}  // namespace

json statistics_of_rank(droptest_network& network) {
  std::vector<int> missing;
  for (int rank = 0; rank < network.world_size; ++rank) {
    if (rank != network.rank) missing.push_back(rank);
  }
  return merged(network, {statistics_words(network.counts(), comm::LinkDetail::kInclude)}, network.exempt,
                std::move(missing));
}

void write_statistics(droptest_network& network, const std::string& folder) {
  const json record = {
      {"schema_version", kSchemaVersion},     {"rank", network.rank},
      {"world_size", network.world_size},     {"seed", network.program.network.seed},
      {"network", digest_of(network)},        {"words", statistics_words(network.counts(), comm::LinkDetail::kInclude)},
      {"exempt", exempt_json(network.exempt)}};
  const auto lock = experiments::FileLock::wait_for(
      folder + "/ranks/lock", [](const std::string&) {}, [] { return false; });
  experiments::write_file_atomically(rank_file(folder, network.rank), record.dump() + "\n");
  std::vector<Words> words;
  std::vector<int> missing;
  ExemptByReason exempt{};
  for (int rank = 0; rank < network.world_size; ++rank) {
    const std::optional<OfRank> of_rank = read_rank(folder, rank, network);
    if (!of_rank) {
      missing.push_back(rank);
      continue;
    }
    words.push_back(of_rank->words);
    for (std::size_t reason = 0; reason < exempt.size(); ++reason) {
      exempt[reason].calls += of_rank->exempt[reason].calls;
      exempt[reason].bytes += of_rank->exempt[reason].bytes;
    }
  }
  experiments::write_file_atomically(folder + "/loss_statistics.json",
                                     merged(network, words, exempt, std::move(missing)).dump(2) + "\n");
}

void forget_statistics(const std::string& folder, int rank) {
  std::error_code error;
  std::filesystem::remove(rank_file(folder, rank), error);
  if (error) comm::fail_on_file("remove", rank_file(folder, rank), error.value());
}

}  // namespace droptest::api
