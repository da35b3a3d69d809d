// SPDX-License-Identifier: Apache-2.0
#include "experiments/watch/shown_values.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

namespace droptest::experiments {
namespace {

using nlohmann::json;
using Names = std::set<std::string, std::less<>>;

const Names kOfLosses = {"lost", "packets"};
const Names kOfRanks = {"cpu_seconds", "device_bytes", "resident_bytes", "sent_bytes"};

/// The document with those members for which keep(depth, top, name) holds: `top` is the member of the document that
/// they are in, with depth 1. Null for bad JSON.
json filtered(const std::string& text, const std::function<bool(int, const std::string&, const std::string&)>& keep) {
  if (text.find('\0') != std::string::npos) return nullptr;  // the parser takes it for the end
  std::string top;
  const auto choose = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event != json::parse_event_t::key) return true;
    const std::string& name = parsed.get_ref<const std::string&>();
    if (depth == 1) top = name;
    return keep(depth, top, name);
  };
  json value = json::parse(text, choose, false);
  return value.is_discarded() ? json() : value;
}

bool is_number_or_null(const json& value) { return value.is_number() || value.is_null(); }

/// Whether the value is an object, and holds(member) for all of its members.
template <class Holds>
bool all_members(const json& value, const Holds& holds) {
  return value.is_object() && std::all_of(value.begin(), value.end(), holds);
}

bool are_losses(const json& classes) {
  return all_members(classes, [](const json& counts) {
    return counts.size() == kOfLosses.size() &&
           all_members(counts, [](const json& count) { return count.is_number_unsigned(); });
  });
}

bool are_ranks(const json& ranks) {
  return ranks.is_array() &&
         std::all_of(ranks.begin(), ranks.end(), [](const json& rank) { return all_members(rank, is_number_or_null); });
}

}  // namespace

const std::vector<std::string>& shown_members() {
  static const std::vector<std::string> kMembers = {"train_loss", "validation_loss", "gradient_norm",
                                                    "divergence", "losses",          "ranks"};
  return kMembers;
}

json shown_of_line(const std::string& text) {
  static const Names kTop = [] {
    Names names = {"step", "tokens", "seconds"};
    names.insert(shown_members().begin(), shown_members().end());
    return names;
  }();
  json line = filtered(text, [](int depth, const std::string& top, const std::string& name) {
    if (depth == 1) return kTop.contains(name);
    if (top == "divergence") return name == "rms";
    if (top == "losses") return depth == 2 || kOfLosses.contains(name);
    return kOfRanks.contains(name);
  });
  if (!line.is_object()) return nullptr;
  for (const char* required : {"step", "seconds"}) {
    if (!line.contains(required) || !line[required].is_number()) return nullptr;
  }
  if (line.contains("tokens") && !line["tokens"].is_number()) return nullptr;
  if (!line["step"].is_number_unsigned()) return nullptr;
  for (const char* number : {"train_loss", "validation_loss", "gradient_norm"}) {
    if (line.contains(number) && !is_number_or_null(line[number])) return nullptr;
  }
  if (line.contains("divergence") && !all_members(line["divergence"], is_number_or_null)) return nullptr;
  if (line.contains("losses") && !are_losses(line["losses"])) return nullptr;
  if (line.contains("ranks") && !are_ranks(line["ranks"])) return nullptr;
  return line;
}

json shown_of_statistics(const std::string& text) {
  json statistics = filtered(text, [](int depth, const std::string& top, const std::string& name) {
    if (depth == 1) return name == "classes" || name == "schema_version";
    return top == "classes" && (depth == 2 || kOfLosses.contains(name));
  });
  const bool is_known = statistics.is_object() && statistics.value("schema_version", json()) == 1 &&
                        statistics.contains("classes") && are_losses(statistics["classes"]);
  return is_known ? std::move(statistics["classes"]) : json();
}

}  // namespace droptest::experiments
