// SPDX-License-Identifier: Apache-2.0
// The check that all ranks draw the same lost packets.
#pragma once

#include "comm/communicator.h"
#include "comm/lossy/flows/flow_ledger.h"

namespace droptest::comm {

/// Compares the digest and number of packets of every link between members of `group` at its two ends; for a link to
/// every destination, at its source and at each member that knows it. `groups_known` is larger than every group number
/// that this rank has. Messages of send and exchange may be under way: a later call then compares the digest of their
/// link. Ranks: all of the group. Throws: CommError on all of them if any differ; it names the class, the link, both
/// ranks and both digests.
void verify_fates(Communicator& group, const FlowLedger& ledger, GroupNumber groups_known);

}  // namespace droptest::comm
