// SPDX-License-Identifier: Apache-2.0
// A sweep point as people read it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace droptest::experiments {

/// The names of the pointers that a sweep varies. A name has the last parts of its pointer, as few as no other pointer
/// ends with: "fill", or "reduce/loss" and "gather/loss". tests/vectors/point_names.json has examples.
class PointNames {
 public:
  PointNames() = default;
  /// `pointers`: in the order of the spec, each once.
  explicit PointNames(const std::vector<std::string>& pointers);

  /// The value of `names` in a sweep.json: [{"pointer": "/network/reduce/loss", "name": "reduce/loss"}].
  nlohmann::json to_json() const;
  /// Reads the value of to_json(), by its schema.
  static PointNames from_json(const nlohmann::json& names);

  bool empty() const { return names_.empty(); }

  /// A point of the sweep in short, in the order of the names: "one bad link, tensor: 4". A label (as records have
  /// them) stands at the first of its pointers. A loss process is "loss: bernoulli loss_rate=5%", other values are
  /// JSON. Pointers of the point without a name get names by the same rule, and follow.
  std::string text(const nlohmann::json& point, const nlohmann::json& labels) const;

 private:
  std::vector<std::pair<std::string, std::string>> names_;  ///< pointer and name
};

/// The seeds in words: "7", or "weights 7, data 7, network 8" if they differ. `seeds` as records have them.
std::string seeds_text(const nlohmann::json& seeds);

}  // namespace droptest::experiments
