// SPDX-License-Identifier: Apache-2.0
#include "api/rank_statistics.h"

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "experiments/records/atomic_file.h"
#include "experiments/records/file_lock.h"
#include "experiments/records/loss_statistics_record.h"

namespace droptest::api {
namespace {

using nlohmann::json;
using Words = std::vector<std::uint64_t>;

constexpr int kSchemaVersion = 1;

std::string rank_file(const std::string& folder, int rank) {
  return folder + "/ranks/" + std::to_string(rank) + ".json";
}

void add(const json& exempt, ExemptByReason& sum) {
  for (std::size_t reason = 0; reason < kExemptionNames.size(); ++reason) {
    if (!exempt.contains(kExemptionNames[reason])) continue;
    const json& of_reason = exempt[std::string(kExemptionNames[reason])];
    sum[reason].calls += of_reason["calls"].get<std::uint64_t>();
    sum[reason].bytes += of_reason["bytes"].get<std::uint64_t>();
  }
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
  out["network"] = {{"seed", of.seed}, {"classes", json::object()}};
  for (const auto& [name, counts] : out["classes"].items()) {
    out["network"]["classes"][name] = network.program.classes.at(name);
  }
  out["exempt"] = exempt_json(exempt);
  out["ranks"] = {{"world_size", network.world_size}, {"missing", std::move(missing)}};
  return out;
}

// Files of other worlds are an earlier program's.
bool is_of_this_world(const json& record, const droptest_network& network) {
  return record.value("world_size", 0) == network.world_size &&
         record.value("seed", json()) == network.program.network.seed;
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
  const json record = {{"schema_version", kSchemaVersion},
                       {"rank", network.rank},
                       {"world_size", network.world_size},
                       {"seed", network.program.network.seed},
                       {"words", statistics_words(network.counts(), comm::LinkDetail::kInclude)},
                       {"exempt", exempt_json(network.exempt)}};
  const auto lock = experiments::FileLock::wait_for(
      folder + "/ranks/lock", [](const std::string&) {}, [] { return false; });
  experiments::write_file_atomically(rank_file(folder, network.rank), record.dump() + "\n");
  std::vector<Words> words;
  std::vector<int> missing;
  ExemptByReason exempt{};
  for (int rank = 0; rank < network.world_size; ++rank) {
    const std::string file = rank_file(folder, rank);
    const json of_rank = std::filesystem::exists(file) ? comm::load_json(file) : json::object();
    if (!is_of_this_world(of_rank, network)) {
      missing.push_back(rank);
      continue;
    }
    words.push_back(of_rank["words"].get<Words>());
    add(of_rank["exempt"], exempt);
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
