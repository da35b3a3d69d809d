// SPDX-License-Identifier: Apache-2.0
// Any bytes as a spec: read, checked, swept, resolved. Only ConfigError may come out; resolved specs resolve again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "comm/json/json_text.h"
#include "experiments/spec/search_plan.h"
#include "experiments/spec/sweep_plan.h"
#include "sim/error.h"

namespace {

/// The length of a list, or of a range [first, last, count].
std::size_t length_of(const nlohmann::json& values) {
  if (values.is_array()) return values.size();
  const nlohmann::json range = values.is_object() && !values.empty() ? values.front() : nlohmann::json();
  if (!range.is_array() || range.size() != 3 || !range[2].is_number()) return 1;
  return static_cast<std::size_t>(std::clamp(range[2].get<double>(), 1.0, 1e6));
}

/// Large sweeps are slow under the sanitizers and take no other way through the code.
bool is_large(const nlohmann::json& document) {
  constexpr std::size_t kMostPoints = 8;
  if (!document.is_object() || !document.contains("sweep") || !document["sweep"].is_object()) return false;
  std::size_t points = 1;
  for (const auto& [name, axes] : document["sweep"].items()) {
    if (!axes.is_object()) continue;
    std::size_t together = 1;  // lists of a zip are as long as each other, or an error
    for (const nlohmann::json& list : axes) {
      const std::size_t length = std::max<std::size_t>(1, length_of(list));
      together = name == "zip" ? std::max(together, length) : together * length;
      if (points * together > kMostPoints) return true;
    }
    points *= together;
  }
  return false;
}

/// Steps of epochs follow from the files that a pattern matches: those of this machine, which take time.
bool looks_for_files(const nlohmann::json& document) {
  const auto has = [&document](const char* section, const char* member) {
    return document.contains(section) && document[section].is_object() && document[section].contains(member);
  };
  return document.is_object() && has("data", "shards") && has("training", "epochs");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace droptest::experiments;  // NOLINT: the whole program is about one namespace
  using droptest::comm::canonical_json;
  using droptest::comm::parse_json;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const nlohmann::json document = parse_json(text, "fuzz");
    DROPTEST_CHECK(parse_json(canonical_json(document), "fuzz") == document, "canonical text reads back");
    if (is_large(document) || looks_for_files(document)) return 0;
    const SweepPlan plan = plan_sweep({document, "fuzz"});
    if (document.contains("search")) (void)SearchPlan({document, "fuzz"});
    const ResolvedRun again = resolve(plan.runs.front().run.spec, "fuzz");
    DROPTEST_CHECK(again.run_id == plan.runs.front().run.run_id, "a resolved spec resolves to itself");
  } catch (const droptest::ConfigError&) {
    return 0;
  }
  return 0;
}
