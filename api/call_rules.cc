// SPDX-License-Identifier: Apache-2.0
#include "api/call_rules.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/argument_error.h"
#include "sim/error.h"

namespace droptest::api {
namespace {

using sim::TrafficClass;

struct OperationEntry {
  std::string_view name;
  TrafficClass traffic_class;  ///< class of the operation's calls without a rule
  enum class Rules : std::uint8_t { kApply, kExempt } rules = Rules::kApply;
};

constexpr std::array kOperations = {
    OperationEntry{"all_reduce", TrafficClass::kDpGradient},
    OperationEntry{"reduce_scatter", TrafficClass::kDpGradient},
    OperationEntry{"reduce", TrafficClass::kDpGradient},
    OperationEntry{"all_gather", TrafficClass::kParameterGather},
    OperationEntry{"all_to_all", TrafficClass::kSequenceForward},
    OperationEntry{"send", TrafficClass::kPpActivation},
    OperationEntry{"recv", TrafficClass::kPpActivation},
    OperationEntry{"broadcast", TrafficClass::kControl, OperationEntry::Rules::kExempt},
    OperationEntry{"gather", TrafficClass::kControl, OperationEntry::Rules::kExempt},
    OperationEntry{"scatter", TrafficClass::kControl, OperationEntry::Rules::kExempt},
    OperationEntry{"barrier", TrafficClass::kControl, OperationEntry::Rules::kExempt},
};

const OperationEntry& entry_of(std::string_view operation) {
  const auto* found =
      std::find_if(kOperations.begin(), kOperations.end(), [&](const auto& entry) { return entry.name == operation; });
  if (found != kOperations.end()) return *found;
  std::string known;
  for (const OperationEntry& entry : kOperations) known += (known.empty() ? "" : ", ") + std::string(entry.name);
  throw ArgumentError("operation: got \"" + std::string(operation) + "\", want one of " + known);
}

/// A message has one operation, whichever of its ends asks for it.
std::string_view rule_operation(std::string_view operation) { return operation == "recv" ? "send" : operation; }

}  // namespace

CallRules::CallRules(const nlohmann::json& rules) {
  for (const nlohmann::json& json : rules) {
    Rule rule;
    rule.operation = rule_operation(json.value("operation", ""));
    if (json.contains("group")) rule.group = json["group"].get<std::string>();
    if (json.contains("ranks")) rule.ranks = json["ranks"].get<int>();
    rule.at_least_bytes = json.value("at_least_bytes", rule.at_least_bytes);
    rule.at_most_bytes = json.value("at_most_bytes", rule.at_most_bytes);
    rule.traffic_class = sim::traffic_class_from_name(json["class"].get<std::string>());
    rules_.push_back(std::move(rule));
  }
}

bool CallRules::Rule::matches(const ProgramCall& call) const {
  return (operation.empty() || operation == rule_operation(call.operation)) && (!group || *group == call.group) &&
         (!ranks || *ranks == call.group_ranks) && call.bytes() >= at_least_bytes && call.bytes() <= at_most_bytes;
}

CallClass CallRules::of(const ProgramCall& call, const comm::Network& network) const {
  const auto exempt = [](Exemption reason) { return CallClass{TrafficClass::kControl, reason}; };
  const OperationEntry& operation = entry_of(call.operation);
  if (operation.rules == OperationEntry::Rules::kExempt) return exempt(Exemption::kOperation);
  if (call.group_ranks < 2) return exempt(Exemption::kOneRank);
  if (comm::is_integer(call.type)) return exempt(Exemption::kInteger);
  const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const Rule& one) { return one.matches(call); });
  const TrafficClass traffic_class = rule == rules_.end() ? operation.traffic_class : rule->traffic_class;
  if (traffic_class == TrafficClass::kControl) return exempt(Exemption::kRule);
  const auto& of_class = network.of(traffic_class);
  DROPTEST_CHECK(of_class.has_value(), "a class without a network");
  if (call.bytes() < of_class->payload_bytes) return exempt(Exemption::kSmall);
  return {traffic_class, std::nullopt};
}

}  // namespace droptest::api
