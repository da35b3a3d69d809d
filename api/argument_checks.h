// SPDX-License-Identifier: Apache-2.0
// The border of the C interface: arguments are checked, and exceptions become error codes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "api/droptest.h"
#include "api/rank_network.h"

namespace droptest::api {

/// Keeps the current exception's message for the calling thread. Returns its code. Called in a handler.
droptest_status status_of_exception() noexcept;
const char* last_error() noexcept;

/// Runs a function of the interface.
template <class Body>
droptest_status guarded(const Body& body) noexcept {
  try {
    body();
    return DROPTEST_OK;
  } catch (...) {
    return status_of_exception();
  }
}

/// Throws: ArgumentError with this message.
void require(bool holds, const char* message);

/// Checks that the network was made in this process. Throws: an error with the code DROPTEST_FORKED for a network of
/// the parent, which is not read further: its mutex may be locked for ever.
const droptest_network& own(const droptest_network* network);
droptest_network& own(droptest_network* network);
droptest_network& network_of(const droptest_flow* flow);
droptest_network& network_of(const droptest_group* group);

/// Checks of arguments. Throws: ArgumentError.
sim::TrafficClass checked_class(droptest_class traffic_class);
comm::ElementType checked_type(droptest_type type);
std::uint16_t checked_rank(std::int32_t rank, const droptest_network& network, const char* name);
comm::GroupNumber checked_group(std::uint32_t number, const droptest_network& network, sim::TrafficClass of);
ProgramCall checked_call(const droptest_call* call);
sim::Packetizer packets_of(const droptest_flow& flow, std::uint64_t elements, droptest_type type);
comm::Tensor tensor_of(void* data, std::uint64_t elements, droptest_type type);
/// Checks a mask for that many packets; returns its number of words.
std::size_t checked_words(const std::uint64_t* mask, std::size_t words, std::uint64_t packets);
sim::PacketMask mask_of(const std::uint64_t* mask, const sim::Packetizer& packets);

}  // namespace droptest::api
