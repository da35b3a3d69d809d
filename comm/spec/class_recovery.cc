// SPDX-License-Identifier: Apache-2.0
#include "comm/spec/class_recovery.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace droptest::comm {

using nlohmann::json;

json normal_recovery(json recovery) {
  if (recovery.contains("interleave") && recovery["interleave"] == 1) recovery.erase("interleave");
  if (recovery.value("error_feedback", json()) == false) recovery.erase("error_feedback");
  if (!recovery.contains("protect")) return recovery;
  json& protect = recovery["protect"];
  for (const char* list : {"layers", "names"}) {
    if (protect.contains(list) && protect[list].empty()) protect.erase(list);
  }
  if (protect.contains("steps") && protect["steps"]["from"] >= protect["steps"]["until"]) protect.erase("steps");
  if (protect.empty()) recovery.erase("protect");
  return recovery;
}

ClassRecovery class_recovery(const json& recovery) {
  ClassRecovery result;
  result.interleave_packets = recovery.value("interleave", std::uint64_t{1});
  if (recovery.contains("hadamard")) {
    result.hadamard_block_elems = recovery["hadamard"].value("block", std::uint64_t{1024});
  }
  const json feedback = recovery.value("error_feedback", json(false));
  using ErrorFeedback = ClassRecovery::ErrorFeedback;
  if (feedback == true) result.error_feedback = ErrorFeedback::kOn;
  if (feedback == "ef21") result.error_feedback = ErrorFeedback::kEf21;
  if (feedback == "ef21_acknowledged") result.error_feedback = ErrorFeedback::kEf21Acknowledged;
  if (!recovery.contains("protect")) return result;
  const json& protect = recovery["protect"];
  result.protect.layers = protect.value("layers", std::vector<int>());
  result.protect.names = protect.value("names", std::vector<std::string>());
  if (protect.contains("steps")) {
    const json& steps = protect["steps"];
    result.protect.steps = {steps.value("from", std::uint64_t{0}), steps["until"].get<std::uint64_t>()};
  }
  return result;
}

}  // namespace droptest::comm
