// SPDX-License-Identifier: Apache-2.0
// Questions about the fates of a flow, which change nothing.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "api/droptest.h"
#include "api/rank_network.h"
#include "sim/loss/fate_report.h"

namespace droptest::api {

/// A digest differs from that of a link's fates.
class MismatchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The fates of packets of the flow's link. The network's mutex is held. Throws: ArgumentError for more packets than a
/// report can have, for indices beyond 2^64, and for those of another group.
sim::FateReport fates_of(const droptest_flow& flow, std::uint64_t first_packet, std::uint64_t packets);

/// fates_of() as the JSON of `droptest fates`. The network's mutex is held.
std::string report_of(const droptest_flow& flow, std::uint64_t first_packet, std::uint64_t packets);

/// droptest_flow_verify(). Throws: MismatchError, ArgumentError.
void verify(const droptest_flow& flow, std::uint64_t packets, std::uint64_t digest);

/// droptest_flow_law(). Throws: ConfigError that names the member of the network.
droptest_law law_of(const droptest_flow& flow);

/// droptest_flow_counts(). The network's mutex is held.
droptest_counts counts_of(const droptest_flow& flow);

/// Whether the fill of the group's sums has no meaning for the reduction: its calls lose nothing.
bool has_no_loss_layer(const droptest_group& group, droptest_reduction reduction);

/// Throws: ArgumentError for a reduction of the group that its network cannot have: it does not lose packets in a half
/// with losses, or the fill has no meaning for it. `finishes`: whether the caller scales results.
void check_sum(const droptest_group& group, droptest_reduction reduction, comm::ElementType type, bool finishes);

}  // namespace droptest::api
