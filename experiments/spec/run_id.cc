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

/// A file counts by its content: where its checksum is known, its name is empty.
void leave_paths_out(json& value) {
  const auto empty = [&value](std::initializer_list<const char*> paths) {
    for (const char* path : paths) {
      if (value.contains(path)) value[path] = "";
    }
  };
  if (value.is_object() && value.contains("sha256")) {
    empty({"weights", "pretrained", "manifest", "file", "text", "library", "examples", "validation_examples"});
    if (!value.contains("bytes")) empty({"tokens"});  // those of a shard are their number
    value.erase("version");
  }
  if (value.is_object() && value.contains("crc32c")) empty({"file"});
  if (value.is_object() && value.contains("files")) empty({"shards", "validation_shards", "manifest"});
  if (!value.is_structured()) return;
  for (json& member : value) leave_paths_out(member);
}

}  // namespace

std::string run_id_of(const json& resolved_spec) {
  json identity = resolved_spec;
  // Attention in chunks rounds other sums.
  const json::json_pointer chunk("/memory/attention_chunk");
  const json attention_chunk = identity.value(chunk, json());
  for (const char* pointer : kChangesNoResult) {
    const json::json_pointer path(pointer);
    if (identity.contains(path)) identity.at(path.parent_pointer()).erase(path.back());
  }
  if (!attention_chunk.is_null()) identity[chunk] = attention_chunk;
  leave_paths_out(identity);
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

}  // namespace droptest::experiments
