// SPDX-License-Identifier: Apache-2.0
// Recovery policies by name: the one list that a new one is added to. Makes the recovery of a link from its parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "sim/parameters.h"
#include "sim/recovery/link_recovery.h"

namespace droptest::sim {

/// The place at which a policy acts, and so the place of its name in a spec.
enum class RecoveryPlace : std::uint8_t {
  kLink,   ///< acts on each link of a class, or of one half
  kClass,  ///< acts on whole messages of a class
};

struct RecoveryEntry {
  std::string_view name;
  RecoveryPlace place;
  std::string_view summary;  ///< its effect, with its parameters
};

/// All known policies, in the order in which they are listed.
const std::vector<RecoveryEntry>& recoveries();

/// The recovery of {"parity": {...}, "retransmit": {...}}, either or both; null for neither.
/// Throws: ConfigError for unknown, missing or out-of-range parameters, and for go_back_n or go_back_0 with parity.
std::shared_ptr<const LinkRecovery> make_link_recovery(const Parameters& parameters);

}  // namespace droptest::sim
