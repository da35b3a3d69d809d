// SPDX-License-Identifier: Apache-2.0
// Any bytes as metrics.jsonl, line by line: anomalies are found without an error, and each is a line that the schema of
// events.jsonl allows. Any bytes as events.jsonl: a line that the schema allows has a message to show.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/schema/schema_kinds.h"
#include "experiments/watch/anomalies.h"
#include "sim/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace droptest::experiments;  // NOLINT: the whole program is about one namespace
  std::vector<AnomalyDetector::Rule> rules;
  for (const AnomalyKind& kind : anomaly_kinds()) rules.push_back({&kind, kind.threshold});
  AnomalyDetector detector(rules);
  std::string_view text(reinterpret_cast<const char*>(data), size);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const nlohmann::json line = nlohmann::json::parse(text.substr(0, end), nullptr, false);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.is_discarded()) continue;
    const bool is_line = schema_of(SchemaKind::kMetrics).check(line).empty();
    for (const Anomaly& anomaly : detector.take(line)) {
      if (!is_line) continue;
      const nlohmann::json event = event_json(anomaly, line);
      DROPTEST_CHECK(schema_of(SchemaKind::kEvent).check(event).empty(), event.dump());
    }
    if (schema_of(SchemaKind::kEvent).check(line).empty()) {
      DROPTEST_CHECK(!line.at("message").get<std::string>().empty(), "a message to show");
    }
  }
  return 0;
}
