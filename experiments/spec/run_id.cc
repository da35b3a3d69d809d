// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/run_id.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "comm/json/schema_checker.h"
#include "comm/spec/sha256.h"
#include "experiments/schema/schema_kinds.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

constexpr const char* kNumericsVersion = "/numerics_version";
/// The first version that changes the numerics of a run without loss, too.
constexpr int kFirstWithoutLoss = 3;

/// The runs with an identity that a member is a part of. The names are the values of x-identity in the schemas; what is
/// within a member has the member's word, unless it has a word of its own.
enum class Identity : std::uint8_t {
  kAll,                ///< all runs; the word of a member without one
  kNone,               ///< none: the member changes no result
  kImplied,            ///< none: the member changes results through another member, which is a part of the identity
  kLoss,               ///< a run that loses packets
  kLossOrCompression,  ///< a run that loses packets or compresses messages; of a class in the network: if it does
  kNetworkDraws,       ///< a run with draws of the network's seed, of whatever kind
  kNumerics,           ///< a run that loses packets, and each run of numerics that change runs without loss
};

Identity identity_named(const std::string& pointer, const std::string& word) {
  using enum Identity;
  static const std::map<std::string, Identity> kNames = {{"all", kAll},
                                                         {"none", kNone},
                                                         {"implied", kImplied},
                                                         {"loss", kLoss},
                                                         {"loss_or_compression", kLossOrCompression},
                                                         {"network_draws", kNetworkDraws},
                                                         {"numerics", kNumerics}};
  const auto known = kNames.find(word);
  DROPTEST_CHECK(known != kNames.end(), "x-identity of " + pointer + ": got " + word);
  return known->second;
}

/// The words of the schemas by pointer, in the order of the pointers' bytes.
const std::map<std::string, Identity, std::less<>>& identities() {
  static const std::map<std::string, Identity, std::less<>> kIdentities = [] {
    std::map<std::string, Identity, std::less<>> all;
    for (const SchemaKind kind : {SchemaKind::kSpec, SchemaKind::kCommandSpec}) {
      for (const auto& [pointer, word] : schema_of(kind).annotations("x-identity")) {
        const Identity identity = identity_named(pointer, word);
        const auto known = all.emplace(pointer, identity).first;
        DROPTEST_CHECK(known->second == identity, "x-identity of " + pointer + ": two schemas differ");
      }
    }
    return all;
  }();
  return kIdentities;
}

Identity identity_of(std::string_view pointer) {
  DROPTEST_CHECK(pointer.empty() || pointer.front() == '/', std::string(pointer) + ": no pointer");
  for (;; pointer = pointer.substr(0, pointer.rfind('/'))) {
    if (const auto known = identities().find(pointer); known != identities().end()) return known->second;
    if (pointer.empty()) return Identity::kAll;
  }
}

/// Adds the pointers of the members at and below `at` for which `is_left_out` is true; one pointer for a member that is
/// left out as a whole.
template <class LeftOut>
void find_left_out(const json& value, const std::string& at, const LeftOut& is_left_out,
                   std::vector<std::string>& found) {
  const bool all = is_left_out(at);
  const std::string below = at + "/";
  bool is_whole = true;
  for (auto inner = identities().lower_bound(below); inner != identities().end(); ++inner) {
    if (!inner->first.starts_with(below)) break;
    if (is_left_out(inner->first) != all && value.contains(json::json_pointer(inner->first.substr(at.size())))) {
      is_whole = false;
      break;
    }
  }
  if (is_whole) {
    if (all) found.push_back(at);
    return;
  }
  for (const auto& [name, member] : value.items()) {
    find_left_out(member, comm::child_pointer(at, name), is_left_out, found);
  }
}

/// Members that name files. A file counts by its content: if its checksum is known, its name is no part of an id.
struct FileMembers {
  std::vector<std::string> paths;
  std::vector<std::string> versions;
};

/// Adds the file members of the object at a pointer, but not those of objects within it.
void find_own_files(const json& value, const std::string& at, FileMembers& found) {
  const auto add = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (value.contains(name)) found.paths.push_back(comm::child_pointer(at, name));
    }
  };
  if (value.contains("sha256")) {
    add({"weights", "pretrained", "manifest", "file", "text", "library", "examples", "validation_examples"});
    if (!value.contains("bytes")) add({"tokens"});  // those of a shard are their number
    if (value.contains("version")) found.versions.push_back(comm::child_pointer(at, "version"));
  }
  if (value.contains("crc32c")) add({"file"});
  if (value.contains("files")) add({"shards", "validation_shards", "manifest"});
}

/// The settings of a program of the user's own, in which names of members have no meaning.
constexpr const char* kSettings = "/settings";

/// Adds the file members in the value at a pointer.
void find_files(const json& value, const std::string& at, FileMembers& found) {
  if (at == kSettings) return;
  if (value.is_object()) {
    find_own_files(value, at, found);
    for (const auto& [name, member] : value.items()) find_files(member, comm::child_pointer(at, name), found);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) find_files(value[i], at + "/" + std::to_string(i), found);
  }
}

/// The file members in a value, with one pattern for a list if every entry has the same: /data/files/*/file.
FileMembers file_patterns_in(const json& value, const std::string& at) {
  FileMembers found;
  if (at == kSettings) return found;
  if (value.is_array()) {
    std::vector<FileMembers> entries;
    for (const json& entry : value) entries.push_back(file_patterns_in(entry, ""));
    const bool are_alike = std::all_of(entries.begin(), entries.end(), [&](const FileMembers& one) {
      return one.paths == entries.front().paths && one.versions == entries.front().versions;
    });
    if (are_alike && entries.size() > 1) entries.resize(1);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::string place = at + "/" + (are_alike ? "*" : std::to_string(i));
      for (const std::string& path : entries[i].paths) found.paths.push_back(place + path);
      for (const std::string& version : entries[i].versions) found.versions.push_back(place + version);
    }
  } else if (value.is_object()) {
    find_own_files(value, at, found);
    for (const auto& [name, member] : value.items()) {
      FileMembers inner = file_patterns_in(member, comm::child_pointer(at, name));
      found.paths.insert(found.paths.end(), inner.paths.begin(), inner.paths.end());
      found.versions.insert(found.versions.end(), inner.versions.begin(), inner.versions.end());
    }
  }
  return found;
}

FileMembers files_in(const json& resolved_spec) {
  FileMembers found;
  find_files(resolved_spec, "", found);
  return found;
}

void remove(json& document, const std::string& pointer) {
  const json::json_pointer path(pointer);
  if (document.contains(path)) document.at(path.parent_pointer()).erase(path.back());
}

bool compresses(const json& of_class) { return of_class.contains("compression"); }

/// Probabilities of failures that the network's seed draws and that no member of the network gives.
bool draws_failures(const json& resolved_spec) {
  const json none = 0.0;
  return resolved_spec.value("/failures/stages/rate"_json_pointer, none) != none ||
         resolved_spec.value("/training/loss_scale/flag_loss_rate"_json_pointer, none) != none;
}

json classes_of(const json& resolved_spec) {
  return resolved_spec.value("/network/classes"_json_pointer, json::object());
}

bool is_lossless(const json& loss) { return loss.at("model") == "none" || loss.value("loss_rate", json()) == 0.0; }

/// Whether no packet of the class is lost and its messages are not transformed: a class with a rate of 0 is listed,
/// too.
bool draws_nothing(const json& of_class) {
  if (compresses(of_class) || of_class.contains("recovery")) return false;
  for (const char* name : {"reduce", "gather"}) {
    if (!of_class.contains(name)) continue;
    const json& half = of_class.at(name);
    if (!is_lossless(half.at("loss"))) return false;
    for (const json& link : half.value("links", json::array())) {
      if (!is_lossless(link.at("loss"))) return false;
    }
  }
  return true;
}

}  // namespace

std::string run_id_of(const json& resolved_spec) {
  json identity = resolved_spec;
  std::vector<std::string> left_out;
  const auto is_left_out = [](std::string_view pointer) {
    const Identity of_runs = identity_of(pointer);
    return of_runs == Identity::kNone || of_runs == Identity::kImplied;
  };
  find_left_out(resolved_spec, "", is_left_out, left_out);
  for (const std::string& pointer : left_out) remove(identity, pointer);
  const FileMembers files = files_in(identity);
  for (const std::string& path : files.paths) identity[json::json_pointer(path)] = "";
  for (const std::string& version : files.versions) remove(identity, version);
  return comm::sha256_hex(comm::canonical_json(identity)).substr(0, 16);
}

bool changes_results(std::string_view pointer) { return identity_of(pointer) != Identity::kNone; }

bool changes_results(const std::string& pointer, const json& value) {
  if (changes_results(pointer)) return true;
  if (!value.is_object()) return false;
  for (const auto& [name, member] : value.items()) {
    if (changes_results(comm::child_pointer(pointer, name), member)) return true;
  }
  return false;
}

std::vector<std::string> twin_omits(const json& resolved_spec) {
  const json classes = classes_of(resolved_spec);
  const bool some_compress = std::any_of(classes.begin(), classes.end(), compresses);
  const auto compresses_at = [&](std::string_view pointer) {
    constexpr std::string_view kClasses = "/network/classes/";
    if (!pointer.starts_with(kClasses)) return some_compress;
    const std::string_view name = pointer.substr(kClasses.size());
    const auto of_class = classes.find(name.substr(0, name.find('/')));
    return of_class != classes.end() && compresses(*of_class);
  };
  const auto is_left_out = [&](std::string_view pointer) {
    switch (identity_of(pointer)) {
      case Identity::kAll:
        return false;
      case Identity::kLossOrCompression:
        return !compresses_at(pointer);
      case Identity::kNetworkDraws:
        return !some_compress && !draws_failures(resolved_spec);
      case Identity::kNumerics:
        return resolved_spec.value(json::json_pointer(kNumericsVersion), 1) < kFirstWithoutLoss;
      case Identity::kNone:
      case Identity::kImplied:
      case Identity::kLoss:
        return true;
    }
    return true;
  };
  std::vector<std::string> omits;
  find_left_out(resolved_spec, "", is_left_out, omits);
  const FileMembers files = file_patterns_in(resolved_spec, "");
  omits.insert(omits.end(), files.paths.begin(), files.paths.end());
  omits.insert(omits.end(), files.versions.begin(), files.versions.end());
  return omits;
}

bool uses_network_seed(const json& resolved_spec) {
  const json classes = classes_of(resolved_spec);
  return !std::all_of(classes.begin(), classes.end(), draws_nothing) || resolved_spec.contains("time") ||
         draws_failures(resolved_spec);
}

}  // namespace droptest::experiments
