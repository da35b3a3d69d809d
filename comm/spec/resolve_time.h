// SPDX-License-Identifier: Apache-2.0
// The time section of a spec -> the rules of the virtual clock.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/network.h"
#include "comm/lossy/recovery_rules.h"

namespace droptest::comm {

/// The links of a time section with defaults.
sim::LinkClasses link_classes(const nlohmann::json& time);

struct ResolvedTime {
  TimeModel model;
  std::vector<std::string> errors;  ///< complete messages; not empty: the model means nothing
};

/// `time` is the spec's section with defaults; the halves of `network`, the network of the run's classes, get the
/// retransmission of the section. `where` names the document.
ResolvedTime resolve_time(const nlohmann::json& time, Network& network, const std::string& where);

/// Complete messages on retransmissions of `network` that would hardly ever deliver the largest all-reduce of the run.
/// `time`: the section with defaults, or null.
std::vector<std::string> endless_repetitions(const Network& network, const AllReduceSize& largest,
                                             const nlohmann::json& time, const std::string& where);

}  // namespace droptest::comm
