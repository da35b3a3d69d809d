// SPDX-License-Identifier: Apache-2.0
// Whether the ranks of a program have one network.
#pragma once

#include <cstdint>
#include <string>

#include "api/rank_network.h"

namespace droptest::api {

/// The first 64 bits of the SHA-256 of comm::ProgramNetwork::identity.
std::uint64_t network_digest(const droptest_network& network);

/// Throws: MismatchError with the first member that differs from the identity of the rank `peer`; ArgumentError for a
/// text that is no identity.
void check_peer(const droptest_network& network, int peer, const std::string& identity);

}  // namespace droptest::api
