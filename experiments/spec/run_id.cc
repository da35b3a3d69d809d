// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/run_id.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "comm/json/schema_checker.h"
#include "comm/spec/sha256.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// The one list of the members that a run id leaves out.
constexpr std::array kChangesNoResult = {"/name",
                                         "/description",
                                         "/unit",
                                         "/record",
                                         "/backend/timeout_seconds",
                                         "/backend/threads_per_rank",
                                         "/backend/rendezvous",
                                         "/data/lost_limit",
                                         "/data/retries",
                                         "/checkpoint",
                                         "/restart",
                                         "/elastic",
                                         "/memory",
                                         "/alerts"};

constexpr const char* kNumerics = "/numerics_version";
/// The first version that changes the numerics of a run without loss, too.
constexpr int kFirstWithoutLoss = 3;

/// The further members that cannot change the result of a run that loses and compresses nothing. A virtual clock only
/// measures such a run.
constexpr std::array kChangesNoLosslessResult = {"/network",       "/rules",  "/time",
                                                 "/seeds/network", kNumerics, "/validation/network"};

/// The further members that cannot change the result of a run that compresses messages: members of the spec, and
/// members of each class that compresses.
constexpr std::array kChangesNoCompressedResult = {"/time", kNumerics};
constexpr std::array kChangesNoCompressedClass = {"/reduce", "/gather", "/burst_scope", "/recovery/protect"};

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

// Attention in chunks rounds other sums.
const json::json_pointer& attention_chunk() {
  static const json::json_pointer kPointer("/memory/attention_chunk");
  return kPointer;
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
  const json chunk = identity.value(attention_chunk(), json());
  for (const char* pointer : kChangesNoResult) remove(identity, pointer);
  if (!chunk.is_null()) identity[attention_chunk()] = chunk;
  const FileMembers files = files_in(identity);
  for (const std::string& path : files.paths) identity[json::json_pointer(path)] = "";
  for (const std::string& version : files.versions) remove(identity, version);
  return comm::sha256_hex(comm::canonical_json(identity)).substr(0, 16);
}

bool changes_results(std::string_view pointer) {
  // A class of traffic in the network follows from the first; the second is a part of the id.
  if (pointer == "/memory/recompute_traffic" || pointer == "/memory/attention_chunk") return true;
  return std::none_of(kChangesNoResult.begin(), kChangesNoResult.end(), [pointer](std::string_view excluded) {
    return pointer == excluded || (pointer.starts_with(excluded) && pointer[excluded.size()] == '/');
  });
}

bool changes_results(const std::string& pointer, const json& value) {
  if (changes_results(pointer)) return true;
  if (!value.is_object()) return false;
  for (const auto& [name, member] : value.items()) {
    if (changes_results(comm::child_pointer(pointer, name), member)) return true;
  }
  return false;
}

std::vector<std::string> twin_omits(const json& resolved_spec) {
  std::vector<std::string> omits;
  const auto add = [&](const std::string& pointer) {
    if (pointer == kNumerics && resolved_spec.value(json::json_pointer(kNumerics), 1) >= kFirstWithoutLoss) return;
    if (resolved_spec.contains(json::json_pointer(pointer))) omits.push_back(pointer);
  };
  const bool has_chunk = !resolved_spec.value(attention_chunk(), json()).is_null();
  for (const std::string pointer : kChangesNoResult) {
    if (pointer != "/memory" || !has_chunk) {
      add(pointer);
      continue;
    }
    for (const auto& [name, ignored] : resolved_spec.at("memory").items()) {
      const std::string member = comm::child_pointer(pointer, name);
      if (member != attention_chunk().to_string()) add(member);
    }
  }
  const json classes = classes_of(resolved_spec);
  if (std::any_of(classes.begin(), classes.end(), compresses)) {
    for (const char* pointer : kChangesNoCompressedResult) add(pointer);
    for (const auto& [name, of_class] : classes.items()) {
      const std::string section = "/network/classes/" + name;
      if (!compresses(of_class)) {
        add(section);
        continue;
      }
      for (const char* member : kChangesNoCompressedClass) add(section + member);
    }
  } else {
    for (const std::string pointer : kChangesNoLosslessResult) {
      if (pointer != "/seeds/network" || !draws_failures(resolved_spec)) add(pointer);
    }
  }
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
