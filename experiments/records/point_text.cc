// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/point_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace droptest::experiments {
namespace {

using nlohmann::json;

std::string value_text(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object() || !value.contains("model") || !value.at("model").is_string()) return value.dump();
  std::string text = value.at("model").get<std::string>();
  for (const auto& [name, member] : value.items()) {
    if (name == "model") continue;
    text += " " + name + "=" + (member.is_string() ? member.get<std::string>() : member.dump());
  }
  return text;
}

/// The shortest end of the pointer, of whole parts, that no other pointer has; else the pointer itself.
std::string name_of(const std::string& pointer, const std::vector<std::string>& pointers) {
  for (std::size_t slash = pointer.rfind('/'); slash != std::string::npos; slash = pointer.rfind('/', slash - 1)) {
    const std::string end = pointer.substr(slash);
    const bool is_shared = std::any_of(pointers.begin(), pointers.end(), [&](const std::string& other) {
      return other != pointer && other.ends_with(end);
    });
    if (!is_shared) return end.substr(1);
    if (slash == 0) break;
  }
  return pointer;
}

}  // namespace

PointNames::PointNames(const std::vector<std::string>& pointers) {
  for (const std::string& pointer : pointers) names_.emplace_back(pointer, name_of(pointer, pointers));
}

json PointNames::to_json() const {
  json names = json::array();
  for (const auto& [pointer, name] : names_) names.push_back({{"pointer", pointer}, {"name", name}});
  return names;
}

PointNames PointNames::from_json(const json& names) {
  PointNames result;
  for (const json& one : names) result.names_.emplace_back(one.at("pointer"), one.at("name"));
  return result;
}

std::string PointNames::text(const json& point, const json& labels) const {
  std::vector<std::string> pointers;
  for (const auto& [pointer, ignored] : names_) pointers.push_back(pointer);
  const std::size_t known = pointers.size();
  for (const auto& [pointer, ignored] : point.items()) {
    if (std::find(pointers.begin(), pointers.end(), pointer) == pointers.end()) pointers.push_back(pointer);
  }
  const PointNames all = pointers.size() == known ? *this : PointNames(pointers);

  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  std::vector<bool> is_told(labels.size());
  for (const auto& [pointer, name] : all.names_) {
    if (!point.contains(pointer)) continue;
    bool is_labelled = false;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const json& over = labels[i].at("pointers");
      if (std::find(over.begin(), over.end(), json(pointer)) == over.end()) continue;
      is_labelled = true;
      if (!is_told[i]) add(labels[i].at("label").get<std::string>());
      is_told[i] = true;
    }
    if (!is_labelled) add(name + ": " + value_text(point.at(pointer)));
  }
  return text.empty() ? "-" : text;
}

std::string seeds_text(const json& seeds) {
  const std::string weights = seeds.at("weights").dump();
  const std::string data = seeds.at("data").dump();
  const std::string network = seeds.at("network").dump();
  if (weights == data && data == network) return network;
  return "weights " + weights + ", data " + data + ", network " + network;
}

}  // namespace droptest::experiments
