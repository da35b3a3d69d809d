// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/diagnostics_record.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/schema/schema_kinds.h"
#include "sim/error.h"
#include "sim/loss/gap_theory.h"

namespace droptest::experiments {
namespace {

using comm::finite_or_null;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

nlohmann::json layer_json(const comm::LayerStatistics& layer) {
  const comm::SampleSums& samples = layer.samples;
  return {{"layer", layer.layer < 0 ? nlohmann::json(nullptr) : nlohmann::json(layer.layer)},
          {"steps", layer.steps},
          {"untouched_steps", layer.untouched_steps},
          {"untouched_share", finite_or_null(layer.untouched_share())},
          {"sampled_calls", samples.calls},
          {"error_energy", finite_or_null(samples.elems == 0 ? kUnknown : samples.error_energy)},
          {"exact_energy", finite_or_null(samples.elems == 0 ? kUnknown : samples.exact_energy)},
          {"bias", finite_or_null(samples.bias())},
          {"nmse", finite_or_null(samples.nmse())},
          {"cosine", finite_or_null(samples.cosine())},
          {"divergence_max", finite_or_null(samples.largest_divergence())},
          {"divergence_rms", finite_or_null(samples.divergence_rms())}};
}

/// The bins that hold gaps, or in which theory expects some.
nlohmann::json gap_histogram(const comm::LossCounts& counts, const comm::HalfNetwork& half) {
  constexpr std::size_t kMostBins = 48;
  nlohmann::json histogram = nlohmann::json::array();
  // No single process gives the length of gaps if links or steps differ, or if late packets are lost too.
  const bool known = half.loss != nullptr && comm::has_one_process(half) && !half.deadline;
  const std::vector<double> expected =
      known ? sim::expected_gaps(*half.loss, counts.stretches, kMostBins) : std::vector<double>(kMostBins, kUnknown);
  for (std::size_t bin = 0; bin < kMostBins; ++bin) {
    const std::uint64_t count = bin < counts.gaps.size() ? counts.gaps[bin] : 0;
    if (count == 0 && !(expected[bin] >= 0.5)) continue;
    histogram.push_back({{"from", std::uint64_t{1} << bin},
                         {"to", (std::uint64_t{2} << bin) - 1},
                         {"count", count},
                         {"expected", finite_or_null(expected[bin])}});
  }
  return histogram;
}

}  // namespace

nlohmann::json diagnostics_json(const std::vector<comm::ClassStatistics>& statistics, const comm::Network& network) {
  nlohmann::json classes = nlohmann::json::object();
  for (const comm::ClassStatistics& one : statistics) {
    const std::string name(sim::traffic_class_name(one.traffic_class));
    const sim::Boxed<comm::ClassNetwork>& configured = network.of(one.traffic_class);
    DROPTEST_CHECK(configured.has_value(), "diagnostics of " + name + ", which has no network");
    nlohmann::json layers = nlohmann::json::array();
    for (const comm::LayerStatistics& layer : one.layers) layers.push_back(layer_json(layer));
    classes[name] = {{"layers", std::move(layers)},
                     {"halves",
                      {{"reduce", {{"gap_histogram", gap_histogram(one.halves[0], configured->reduce)}}},
                       {"gather", {{"gap_histogram", gap_histogram(one.halves[1], configured->gather)}}}}}};
  }
  return {{"schema_version", 1}, {"classes", std::move(classes)}};
}

void write_diagnostics_record(const RunDirectory& directory, const nlohmann::json& record) {
  write_record(SchemaKind::kDiagnostics, directory.diagnostics(), record);
}

}  // namespace droptest::experiments
