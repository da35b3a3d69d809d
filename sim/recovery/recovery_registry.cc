// SPDX-License-Identifier: Apache-2.0
#include "sim/recovery/recovery_registry.h"

#include <optional>
#include <set>
#include <string>

#include "sim/error.h"
#include "sim/recovery/parity.h"
#include "sim/recovery/retransmission.h"

namespace droptest::sim {
namespace {

Parity make_parity(const Parameters& parameters) {
  parameters.require_members("a parity code, e.g. {\"data\": 8, \"parity\": 2}");
  parameters.allow_only({"data", "parity", "depth"});
  const auto number = [&parameters](const char* name, std::int64_t most) {
    return static_cast<std::uint64_t>(parameters.integer(name, 1, most));
  };
  ParityCode code;
  code.data = number("data", 254);
  code.parity = number("parity", 254);
  if (parameters.has("depth")) code.depth = number("depth", 65536);
  try {
    return Parity(code);
  } catch (const ConfigError& error) {
    throw ConfigError(parameters.where() + ": " + error.what());
  }
}

}  // namespace

const std::vector<RecoveryEntry>& recoveries() {
  static const std::vector<RecoveryEntry> entries = {
      {"parity", RecoveryPlace::kLink,
       "erasure code: blocks of `data` packets with `parity` parity packets; a block with at most that many losses is "
       "repaired (depth: blocks that take turns)"},
      {"retransmit", RecoveryPlace::kLink,
       "lost packets are sent again, by a retransmission protocol, for `rounds` rounds or as often as it takes"},
      {"interleave", RecoveryPlace::kClass,
       "elements are strided over that many packets: a lost packet leaves small holes, not one large one"},
      {"hadamard", RecoveryPlace::kClass,
       "randomised Hadamard transform of blocks of `block` elements: a burst becomes small noise everywhere"},
      {"error_feedback", RecoveryPlace::kClass,
       "the lost part of a message is added to the sender's next message of the same name; ef21, ef21_acknowledged: "
       "compressed differences change a state that both ends keep"},
      {"protect", RecoveryPlace::kClass, "messages of these layers, steps or names always arrive"},
  };
  return entries;
}

std::shared_ptr<const LinkRecovery> make_link_recovery(const Parameters& parameters) {
  parameters.require_members("a recovery of links, e.g. {\"parity\": {\"data\": 8, \"parity\": 2}}");
  parameters.allow_only({"parity", "retransmit"});
  std::optional<Parity> parity;
  if (parameters.has("parity")) parity = make_parity(parameters.member("parity"));
  if (parameters.has("retransmit")) return make_retransmission(parameters.member("retransmit"), parity);
  if (parity.has_value()) return std::make_shared<Parity>(*parity);
  return nullptr;
}

}  // namespace droptest::sim
