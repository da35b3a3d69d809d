// SPDX-License-Identifier: Apache-2.0
#include "comm/spec/lossy_options_from_json.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/json/schema.h"
#include "comm/spec/network_schema.h"
#include "comm/spec/resolve_network.h"
#include "comm/spec/resolve_time.h"
#include "sim/error.h"

namespace droptest::comm {

using nlohmann::json;

namespace {

ElementType float_of(std::uint64_t bytes) {
  return bytes == 2 ? ElementType::kBfloat16 : bytes == 8 ? ElementType::kFloat64 : ElementType::kFloat32;
}

}  // namespace

LossyOptions lossy_options_from_json(std::string_view text, const std::string& where, const Traffic& traffic) {
  constexpr int kMostRanks = 65534;
  if (traffic.world_size < 1 || traffic.world_size > kMostRanks) {
    throw ConfigError(where + ": got a world of " + std::to_string(traffic.world_size) + " ranks, want 1 to " +
                      std::to_string(kMostRanks));
  }
  const json document = checked_sections(parse_json(text, where), where);
  const json time = document.value("time", json());
  LossyOptions options;
  ResolvedNetwork network = resolve_network(document["network"], traffic.classes, document["seed"].get<std::uint64_t>(),
                                            where, traffic.world_size, network_use(time), time);
  require_none(network.errors);
  options.network = std::move(network.network);
  if (!time.is_null()) {
    ResolvedTime clock = resolve_time(time, options.network, where);
    require_none(clock.errors);
    options.time = std::move(clock.model);
  }
  const AllReduceSize largest{traffic.world_size, traffic.largest_elements, float_of(traffic.element_bytes)};
  require_none(endless_repetitions(options.network, largest, time, where));
  return options;
}

}  // namespace droptest::comm
