// SPDX-License-Identifier: Apache-2.0
#include "experiments/checkpoint/rescue.h"

#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "comm/json/read_file.h"
#include "experiments/files/atomic_file.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

namespace fs = std::filesystem;

/// The intact states after each step.
std::map<std::uint64_t, std::vector<Manifest>> states_in(const std::string& path, const std::string& run_id) {
  std::map<std::uint64_t, std::vector<Manifest>> states;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string file = entry->path().string();
    if (!file.ends_with(".json")) continue;
    try {
      Manifest manifest = parse_manifest(comm::read_file(file), file, ManifestUse::kOwnState);
      if (manifest.run_id != run_id) continue;
      verify_rank_file(path, manifest.ranks.front());
      states[manifest.step].push_back(std::move(manifest));
    } catch (const ConfigError&) {
      continue;
    }
  }
  return states;
}

/// The replicas that are there as a whole, numbered anew without the others. Absent if there is none, or if there are
/// all: then they were told to end, and the last checkpoint has their loss layer, too.
std::optional<Manifest> whole_replicas(const std::vector<Manifest>& states) {
  Manifest manifest = states.front();
  const comm::ParallelLayout layout = manifest.parallel;
  std::map<int, std::map<int, RankFile>> replicas;  // files by data coordinate and rank
  for (const Manifest& state : states) {
    if (!(state.parallel == layout)) continue;
    const RankFile& file = state.ranks.front();
    replicas[layout.coordinates(file.rank).data].insert({file.rank, file});
  }
  const auto whole = static_cast<std::size_t>(layout.world_size() / layout.data);
  std::erase_if(replicas, [whole](const auto& replica) { return replica.second.size() != whole; });
  const bool all_are_whole = replicas.size() == static_cast<std::size_t>(layout.data);
  if (replicas.empty() || all_are_whole) return std::nullopt;
  manifest.parallel.data = static_cast<int>(replicas.size());
  std::map<int, RankFile> files;
  int data = 0;
  for (auto& [of_dead, ranks] : replicas) {
    for (auto& [rank, file] : ranks) {
      comm::ParallelNumbers coordinates = layout.coordinates(rank);
      coordinates.data = data;
      file.rank = manifest.parallel.rank(coordinates);
      files.insert({file.rank, std::move(file)});
    }
    ++data;
  }
  manifest.ranks.clear();
  for (auto& [rank, file] : files) manifest.ranks.push_back(std::move(file));
  manifest.is_rescue = true;
  return manifest;
}

/// The file stays where it is until the checkpoint is complete: a process may be killed before that, or the disk full.
void add_file(const std::string& from, const std::string& to, const std::string& file) {
  std::error_code error;
  fs::create_hard_link(from + "/" + file, to + "/" + file, error);
  if (error) fs::copy_file(from + "/" + file, to + "/" + file, error);  // no links on this file system
  if (error) throw ConfigError(to + "/" + file + ": cannot copy from " + from + ": " + error.message());
}

}  // namespace

void leave_rescue(const CheckpointFolder& folder, Manifest manifest, RankSnapshot snapshot) {
  const std::string path = folder.rescue();
  make_directories(path);
  write_rank_file(path, snapshot.tensors, snapshot.file);
  const std::string name = path + "/" + fs::path(snapshot.file.file).stem().string() + ".json";
  manifest.ranks = {std::move(snapshot.file)};
  write_file_atomically(name, manifest_text(manifest));
}

std::optional<std::uint64_t> complete_rescue(const CheckpointFolder& folder, const std::string& run_id, int keep) {
  const std::string path = folder.rescue();
  if (!fs::exists(path)) return std::nullopt;
  std::optional<Manifest> manifest;
  auto states = states_in(path, run_id);
  for (auto at = states.rbegin(); at != states.rend() && !manifest; ++at) manifest = whole_replicas(at->second);
  const std::vector<std::uint64_t> complete = folder.steps();
  if (manifest && (complete.empty() || complete.back() < manifest->step)) {
    folder.begin(manifest->step);
    for (const RankFile& file : manifest->ranks) add_file(path, folder.unfinished(manifest->step), file.file);
    folder.commit(*manifest, keep);
  } else {
    manifest.reset();
  }
  std::error_code ignored;
  fs::remove_all(path, ignored);
  return manifest ? std::optional(manifest->step) : std::nullopt;
}

}  // namespace droptest::experiments
