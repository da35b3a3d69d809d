// SPDX-License-Identifier: Apache-2.0
#include "comm/spec/loss_from_json.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "comm/json/read_file.h"
#include "comm/json/schema_checker.h"
#include "comm/spec/parameters_from_json.h"
#include "comm/spec/sha256.h"
#include "sim/error.h"
#include "sim/loss/loss_registry.h"

namespace droptest::comm {
namespace {

using nlohmann::json;

/// Members with texts that are not probabilities.
constexpr std::array kTexts = {"model", "file", "start", "sha256"};

/// Reads the files of all traces in `loss`: the hash goes there, the bytes into `full`, a copy of `loss`.
void read_traces(json& loss, json& full, const std::string& where) {
  if (loss.is_array()) {
    for (std::size_t i = 0; i < loss.size(); ++i) read_traces(loss[i], full[i], where + "/" + std::to_string(i));
  }
  if (!loss.is_object()) return;
  if (loss.value("model", json()) != "trace" || !loss.value("file", json()).is_string()) {
    for (auto& [name, member] : loss.items()) read_traces(member, full[name], child_pointer(where, name));
    return;
  }
  std::string contents;
  try {
    contents = read_file(loss["file"].get<std::string>());
  } catch (const ConfigError& error) {
    throw ConfigError(where + "/file: " + error.what());
  }
  const std::string hash = sha256_hex(contents);
  if (loss.contains("sha256") && loss["sha256"] != hash) {
    throw ConfigError(where + "/file: " + loss["file"].get<std::string>() + " has SHA-256 " + hash + ", want " +
                      loss["sha256"].dump() + ": is it the trace that was meant?");
  }
  loss["sha256"] = hash;
  full["sha256"] = hash;
  full["contents"] = contents;
}

}  // namespace

json with_fractions(const json& loss, const std::string& where, std::vector<std::string>& errors) {
  json result = loss;
  if (loss.is_array()) {
    for (std::size_t i = 0; i < loss.size(); ++i) {
      result[i] = with_fractions(loss[i], where + "/" + std::to_string(i), errors);
    }
  }
  if (!loss.is_object()) return result;
  for (auto& [name, value] : result.items()) {
    if (value.is_structured()) {
      value = with_fractions(value, child_pointer(where, name), errors);
    } else if (value.is_string() && std::find(kTexts.begin(), kTexts.end(), name) == kTexts.end()) {
      try {
        value = parameters_from_json(loss, where).probability(name);
      } catch (const ConfigError& error) {
        errors.emplace_back(error.what());
      }
    }
  }
  return result;
}

std::unique_ptr<sim::LossProcess> loss_from_json(json& loss, const std::string& where) {
  json full = loss;
  read_traces(loss, full, where);
  return sim::make_loss_process(parameters_from_json(full, where));
}

}  // namespace droptest::comm
