// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "sim/time/retransmission.h"

namespace droptest::sim {

const std::vector<RetransmissionEntry>& retransmission_protocols() {
  static const std::vector<RetransmissionEntry> entries = {
      {"selective_repeat",
       "lost packets alone are sent again, a round trip later (or timeout_microseconds later, where given)",
       make_selective_repeat},
      {"go_back_n", "all from the lost packet on are sent again (window_packets: default a round trip)",
       make_go_back_n},
      {"go_back_0", "the whole message is sent again (window_packets: default a round trip)", make_go_back_0},
      {"timeout",
       "lost packets are sent again when a timer ends that doubles each time (timeout_microseconds) up to a maximum "
       "(longest_timeout_microseconds: default 60 s)",
       make_timeout},
  };
  return entries;
}

double RetransmissionProtocol::expected_tries(const LossProcess& process, std::uint64_t /*packets*/) const {
  return 1 / process.all_arrive_probability(1);
}

std::unique_ptr<RetransmissionProtocol> make_retransmission(const Parameters& parameters) {
  parameters.require_members("a protocol, e.g. {\"protocol\": \"selective_repeat\"}");
  const std::string protocol = parameters.text("protocol");
  std::string known;
  for (const RetransmissionEntry& entry : retransmission_protocols()) {
    if (entry.protocol == protocol) return entry.make(parameters);
    known += (known.empty() ? "" : ", ") + std::string(entry.protocol);
  }
  parameters.fail("protocol", "one of " + known);
}

}  // namespace droptest::sim
