// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/point_text.h"

#include <nlohmann/json.hpp>

namespace droptest::experiments {
namespace {

std::string value_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object() || !value.contains("model") || !value.at("model").is_string()) return value.dump();
  std::string text = value.at("model").get<std::string>();
  for (const auto& [name, member] : value.items()) {
    if (name == "model") continue;
    text += " " + name + "=" + (member.is_string() ? member.get<std::string>() : member.dump());
  }
  return text;
}

}  // namespace

std::string point_text(const nlohmann::json& point, const nlohmann::json& labels) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  nlohmann::json rest = point;
  for (const nlohmann::json& label : labels) {
    bool of_point = false;
    for (const nlohmann::json& pointer : label.at("pointers")) {
      of_point = rest.erase(pointer.get<std::string>()) != 0 || of_point;
    }
    if (of_point) add(label.at("label").get<std::string>());
  }
  for (const auto& [pointer, value] : rest.items())
    add(pointer.substr(pointer.rfind('/') + 1) + ": " + value_text(value));
  return text.empty() ? "-" : text;
}

std::string seeds_text(const nlohmann::json& seeds) {
  const std::string weights = seeds.at("weights").dump();
  const std::string data = seeds.at("data").dump();
  const std::string network = seeds.at("network").dump();
  if (weights == data && data == network) return network;
  return "weights " + weights + ", data " + data + ", network " + network;
}

}  // namespace droptest::experiments
