// SPDX-License-Identifier: Apache-2.0
// A network in JSON -> the options of a LossyCommunicator, for programs that are no run of a spec.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// The traffic of a program on its network.
struct Traffic {
  int world_size = 1;  ///< ranks, which overrides of links may name
  /// Classes with traffic; the others go straight to the backend.
  std::vector<sim::TrafficClass> classes{sim::kAllTrafficClasses.begin() + 1, sim::kAllTrafficClasses.end()};
  /// Elements of the largest all-reduce over all ranks, for the check by endless_repetition() of recovery_rules.h that
  /// a retransmission without a budget of rounds can deliver it. 0: unknown, no check.
  std::uint64_t largest_elements = 0;
  std::uint64_t element_bytes = 4;
};

/// The options of a LossyCommunicator over any backend, without samples. `text` is {"network": SECTION, "time":
/// SECTION, "seed": INTEGER}. Without a time section there is no virtual clock; the default seed is 1. Rules and
/// meaning are those of a spec (docs/specs.md): a spec's run of these ranks, with this network seed, has the same
/// fates. Files of traces are read; their paths are relative to the working directory. `where` names the text in
/// messages. Units: microseconds, milliseconds, Gbit/s and bytes in the text, by the names of its members; seconds,
/// bytes and bytes per second in the result.
/// Throws: ConfigError that lists all errors, a line each: "<where>: <JSON pointer>: got VALUE, want ...", the schema's
/// rules first, then the rules on several values; "<where>: line L, column C: ..." for text that is not JSON.
LossyOptions lossy_options_from_json(std::string_view text, const std::string& where, const Traffic& traffic);

}  // namespace droptest::comm
