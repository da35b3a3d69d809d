// SPDX-License-Identifier: Apache-2.0
// A test double of NCCL for ranks that are threads of one process: its controls and records for tests. Its sources
// define NCCL's own symbols and are linked in their place; work is done on the streams of fake_streams.h.
//
// Inconvenient like NCCL: a send is done when its receive is; calls that the ranks make differently never end; calls of
// non-blocking communicators take effect only once their state has been queried; an aborted communicator must not be
// used again; nothing has a timeout. Compiled with DROPTEST_FAKE_NCCL_LIBRARY, as a library for programs of any kind,
// communicators may also block, ranks may share a device, and misuse ends the program.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace droptest::fake_nccl {

/// A fault of one rank of a clique that was connected (not split), in its nth operation (0: the first).
struct Plan {
  enum class Kind : std::uint8_t {
    kStall,       ///< the operation never ends
    kAsyncError,  ///< it never ends, and the communicator reports `result`
    kRefuse,      ///< the call returns `result`
    kNotTaken,    ///< the call stays in progress for ever
  };
  Kind kind = Kind::kStall;
  int rank = 0;
  std::uint64_t operation = 0;
  ncclResult_t result = ncclSuccess;
  std::string words{};  ///< of ncclGetLastError
};
void plan(const Plan& plan);

/// Ranks whose device is the same pass for ranks of several hosts, as with NCCL_HOSTID.
void allow_shared_devices();
/// The version that the library reports: 22809 is 2.28.9.
void set_version(int version);
/// How often calls say that they are in progress before they take effect.
void set_polls(int polls);
/// The next making of a communicator, or split, never comes to an end.
void never_connect();

/// The calls of a rank of the first clique, in order: "AllReduce(sum, 12)", "GroupStart", "Send(3 to 1)", ...
std::vector<std::string> calls(int rank);
/// Calls on communicators that were destroyed or aborted, destroyed without being finalised, and other misuse.
std::vector<std::string> misuses();
/// Communicators that were neither destroyed nor aborted.
std::size_t live_communicators();
std::size_t aborted_communicators();

/// No plans, no calls seen, three polls.
void reset();

}  // namespace droptest::fake_nccl
