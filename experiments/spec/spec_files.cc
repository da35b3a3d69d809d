// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/spec_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "comm/json/schema_checker.h"
#include "experiments/spec/spec.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// Merges by RFC 7396, and records the file of each value.
void apply_patch(json& target, const json& patch, const std::string& pointer, const std::string& file,
                 ValueOrigins& origins) {
  if (!patch.is_object()) {
    target = patch;
    origins.set(pointer, file);
    return;
  }
  if (!target.is_object()) {
    target = json::object();
    origins.set(pointer, file);
  }
  for (const auto& [name, member] : patch.items()) {
    const std::string place = comm::child_pointer(pointer, name);
    if (member.is_null()) {
      target.erase(name);
      origins.remove(place);
      continue;
    }
    const bool is_new = !target.contains(name);
    json& value = target[name];
    if (is_new) origins.set(place, file);
    apply_patch(value, member, place, file, origins);
  }
}

/// The file that `document` of the file `path` extends.
std::string extended_path(const json& document, const std::string& path) {
  const json& name = document.at("extends");
  if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
    throw ConfigError(path + ": /extends: got " + comm::quote_json(name) + ", want the name of a spec file");
  }
  return (std::filesystem::path(path).parent_path() / name.get<std::string>()).string();
}

std::string identity_of(const std::string& path) {
  std::error_code unknown;
  const std::filesystem::path known = std::filesystem::weakly_canonical(path, unknown);
  return unknown ? path : known.string();
}

}  // namespace

void ValueOrigins::set(const std::string& pointer, const std::string& file) {
  remove(pointer);
  files_[pointer] = file;
}

void ValueOrigins::remove(const std::string& pointer) {
  for (auto one = files_.lower_bound(pointer); one != files_.end() && one->first.starts_with(pointer);) {
    const bool inside = one->first.size() == pointer.size() || one->first[pointer.size()] == '/';
    one = inside ? files_.erase(one) : std::next(one);
  }
}

std::string ValueOrigins::of(const std::string& pointer) const {
  for (std::string outer = pointer;; outer.erase(outer.rfind('/'))) {
    if (const auto found = files_.find(outer); found != files_.end()) return found->second;
    if (outer.find('/') == std::string::npos) return {};
  }
}

std::string ValueOrigins::with_files(std::string_view message, const std::string& where) const {
  const std::string prefix = where + ": ";
  std::string result;
  while (!message.empty()) {
    const std::string_view line = message.substr(0, message.find('\n'));
    std::string file;
    if (line.starts_with(prefix + "/")) {
      const std::size_t end = line.find(": ", prefix.size());
      if (end != std::string_view::npos) file = of(std::string(line.substr(prefix.size(), end - prefix.size())));
    }
    result += file.empty() ? std::string(line) : file + ": " + std::string(line.substr(prefix.size()));
    if (line.size() < message.size()) result += '\n';
    message.remove_prefix(std::min(message.size(), line.size() + 1));
  }
  return result;
}

void SweptOrder::add(std::string_view spec) {
  const ordered_json document = ordered_json::parse(spec, nullptr, false);
  if (!document.is_object() || !document.contains("sweep") || !document["sweep"].is_object()) return;
  for (const auto& [kind, lists] : document["sweep"].items()) {
    if ((kind != "cross" && kind != "zip") || !lists.is_object()) continue;
    for (const auto& [pointer, ignored] : lists.items()) {
      if (std::find(pointers_.begin(), pointers_.end(), pointer) == pointers_.end()) pointers_.push_back(pointer);
    }
  }
}

void SweptOrder::add_override(std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || !assignment.starts_with("/sweep")) return;
  ordered_json value = ordered_json::parse(assignment.substr(equals + 1), nullptr, false);
  if (value.is_discarded()) return;
  const std::vector<std::string> tokens = pointer_tokens(assignment.substr(0, equals), std::string(assignment));
  for (auto token = tokens.rbegin(); token != tokens.rend(); ++token) {
    ordered_json outer = ordered_json::object();
    outer[*token] = std::move(value);
    value = std::move(outer);
  }
  add(value.dump());
}

MergedSpec merge_extended(std::string_view text, const std::string& path) {
  json document = comm::parse_json(text, path);
  MergedSpec merged;
  if (!document.is_object() || !document.contains("extends")) {
    merged.document = std::move(document);
    merged.swept.add(text);
    return merged;
  }
  // The files of the chain, from this one to the last.
  std::vector<std::pair<std::string, json>> chain;
  std::vector<std::string> texts = {std::string(text)};
  chain.emplace_back(path, std::move(document));
  while (chain.back().second.contains("extends")) {
    const auto& [file, content] = chain.back();
    const std::string next = extended_path(content, file);
    std::string names;
    for (const auto& [known, ignored] : chain) names += known + " -> ";
    for (const auto& [known, ignored] : chain) {
      if (identity_of(known) != identity_of(next)) continue;
      throw ConfigError(file + ": /extends: got " + comm::quote_json(content.at("extends")) +
                        ", which goes round in a circle: " + names + next);
    }
    json more;
    try {
      texts.push_back(comm::read_file(next));
      more = comm::parse_json(texts.back(), next);
    } catch (const ConfigError& error) {
      throw ConfigError(file + ": /extends: " + error.what());
    }
    if (!more.is_object()) throw ConfigError(next + ": /: got " + comm::quote_json(more) + ", want an object");
    chain.emplace_back(next, std::move(more));
  }
  for (auto one = texts.rbegin(); one != texts.rend(); ++one) merged.swept.add(*one);
  merged.document = json::object();
  for (auto one = chain.rbegin(); one != chain.rend(); ++one) {
    one->second.erase("extends");
    apply_patch(merged.document, one->second, "", one->first, merged.origins);
  }
  return merged;
}

}  // namespace droptest::experiments
