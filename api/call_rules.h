// SPDX-License-Identifier: Apache-2.0
// The traffic class of a collective call of another program, and the reasons for exemptions from loss.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/lossy/network.h"
#include "comm/tensor.h"
#include "sim/traffic_class.h"

namespace droptest::api {

/// The reason why no packet of a call is lost. exemption_names() has their names in records.
enum class Exemption : std::uint8_t { kInteger, kSmall, kOperation, kRule, kOneRank, kNoLossLayer };
inline constexpr std::array<std::string_view, 6> kExemptionNames = {"integer", "small",    "operation",
                                                                    "rule",    "one_rank", "no_loss_layer"};

struct ProgramCall {
  std::string_view operation;
  std::string_view group;  ///< name of the process group; empty: it has none
  int group_ranks = 1;
  comm::ElementType type = comm::ElementType::kFloat32;
  std::uint64_t elements = 0;  ///< elements of this rank's message

  std::uint64_t bytes() const { return elements * comm::element_bytes(type); }
};

struct CallClass {
  sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
  std::optional<Exemption> exemption;  ///< absent: packets can be lost
};

/// The rules in JSON; the first rule that matches counts. If none matches, the class follows from the operation.
class CallRules {
 public:
  CallRules() = default;
  /// `rules` is valid by program.schema.json.
  explicit CallRules(const nlohmann::json& rules);

  /// Throws: ArgumentError that lists the known operations, for an operation that is unknown.
  CallClass of(const ProgramCall& call, const comm::Network& network) const;

 private:
  struct Rule {
    std::string operation;  ///< empty: any
    std::optional<std::string> group;
    std::optional<int> ranks;
    std::uint64_t at_least_bytes = 0;
    std::uint64_t at_most_bytes = ~std::uint64_t{0};
    sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
    bool matches(const ProgramCall& call) const;
  };
  std::vector<Rule> rules_;
};

}  // namespace droptest::api
