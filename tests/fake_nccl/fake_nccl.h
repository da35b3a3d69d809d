// SPDX-License-Identifier: Apache-2.0
// Controls and records of a test double of NCCL for ranks that are threads of one process. Its sources define NCCL's
// own symbols and are linked instead of NCCL; work is done on the streams of fake_streams.h.
//
// It is as strict as NCCL: a send ends with its receive; calls that differ between ranks never end; calls of
// non-blocking communicators take effect only when their state has been queried; an aborted communicator must not be
// used again; nothing has a timeout. Compiled with DROPTEST_FAKE_NCCL_LIBRARY, it is a library for any program:
// communicators may also block, ranks may share a device, and misuse ends the program.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace droptest::fake_nccl {

/// A fault of one rank, in the nth operation (0: the first) of a clique that was connected, not split.
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
  std::string words{};  ///< result of ncclGetLastError
};
void plan(const Plan& plan);

/// Ranks with the same device count as ranks of several hosts, as with NCCL_HOSTID.
void allow_shared_devices();
/// The version that the library reports: 22809 is 2.28.9.
void set_version(int version);
/// The number of queries that answer "in progress" before a call takes effect.
void set_polls(int polls);
/// The next creation of a communicator, or split, never ends.
void never_connect();

/// The calls of a rank of the first clique, in order: "AllReduce(sum, 12)", "GroupStart", "Send(3 to 1)", ...
std::vector<std::string> calls(int rank);
/// Misuse so far: calls on destroyed or aborted communicators, communicators that were destroyed but not finalised, and
/// other errors.
std::vector<std::string> misuses();
/// The number of communicators that were neither destroyed nor aborted.
std::size_t live_communicators();
std::size_t aborted_communicators();

/// Resets to no plans, no recorded calls, and three polls.
void reset();

}  // namespace droptest::fake_nccl
