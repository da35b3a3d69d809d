// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/section_resolvers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

class PrecisionResolver {
 public:
  explicit PrecisionResolver(Resolution& resolution)
      : resolution_(resolution), training_(resolution.spec["training"]) {}

  void resolve() {
    if (training_.contains("precision")) resolve_types();
    const json precision = training_.value("precision", json::object());
    const bool needs_scale =
        std::any_of(precision.begin(), precision.end(), [](const json& p) { return p == "float16"; });
    if (training_.contains("loss_scale") || needs_scale) resolve_loss_scale();
  }

 private:
  void report(const std::string& pointer, const std::string& message) {
    resolution_.report("/training/" + pointer, message);
  }

  void resolve_types() {
    json& precision = training_["precision"];
    const bool is_word = precision.is_string();
    if (is_word) {
      precision = {{"compute", precision}};
      resolution_.fill_defaults("/training/precision");
    }
    if (precision["compute"] == "tf32" && resolution_.config.device != Device::kCuda) {
      report(is_word ? "precision" : "precision/compute",
             R"(got "tf32" on /device "cpu", which has no such products, want "float32", "bfloat16" or "float16", or )"
             R"(/device "cuda")");
    }
    const bool usual = std::all_of(precision.begin(), precision.end(), [](const json& p) { return p == "float32"; });
    if (usual) training_.erase("precision");
  }

  /// A number is a static scale; absent with float16 is a dynamic one.
  void resolve_loss_scale() {
    const models::LossScaleConfig usual;
    json& scale = training_["loss_scale"];
    if (scale.is_number()) scale = {{"kind", "static"}, {"initial", scale}};
    if (scale.is_null()) scale = json::object();
    resolution_.fill_defaults("/training/loss_scale");
    const bool is_dynamic = scale["kind"] == "dynamic";
    if (scale.contains("flag_loss_rate") && scale["flag_loss_rate"] == 0) scale.erase("flag_loss_rate");
    for (const auto& [name, value] : {std::pair<const char*, json>("growth", usual.growth),
                                      {"backoff", usual.backoff},
                                      {"interval", usual.interval},
                                      {"hysteresis", usual.hysteresis},
                                      {"minimum", usual.minimum}}) {
      if (is_dynamic) {
        scale.emplace(name, value);
      } else if (scale.contains(name)) {
        report(std::string("loss_scale/") + name, "got " + quote_json(scale[name]) +
                                                      R"(, which "static" has no use for, want it absent, or )"
                                                      R"(/training/loss_scale/kind "dynamic")");
      }
    }
    if (is_dynamic && scale["minimum"].get<double>() > scale["initial"].get<double>()) {
      report("loss_scale/minimum", "got " + quote_json(scale["minimum"]) + ", want at most " +
                                       quote_json(scale["initial"]) + ", the initial scale");
    }
  }

  Resolution& resolution_;
  json& training_;
};

}  // namespace

void resolve_precision(Resolution& resolution) { PrecisionResolver(resolution).resolve(); }

}  // namespace droptest::experiments
