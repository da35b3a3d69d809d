// SPDX-License-Identifier: Apache-2.0
// Random programs of collectives and messages over several groups, blocking or started.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace droptest::comm {

enum class Calls : std::uint8_t {
  kBlocking,
  kStarted,  ///< waited for in an order that each rank draws for itself, some dropped instead
};

/// A group, and two that are split from it: even and odd ranks, and all ranks in reversed order.
class ProgramGroups {
 public:
  /// `world` is borrowed. Ranks: all.
  explicit ProgramGroups(Communicator& world);
  Communicator& group(std::uint64_t number) const;

 private:
  Communicator& world_;
  std::unique_ptr<Communicator> part_;
  std::unique_ptr<Communicator> reversed_;
};

/// The calls of a program. Messages are not for NCCL's communicators, on which some wait for their sender's next call.
enum class Program : std::uint8_t { kAnyCalls, kCollectives };

/// Runs program `number` with messages of a class, and returns the bytes of all outputs. Ranks: all.
std::vector<std::byte> run_started_program(const ProgramGroups& groups, std::uint64_t number,
                                           sim::TrafficClass traffic_class, Calls calls,
                                           Program of = Program::kAnyCalls);

/// Runs a program whose waits for collectives come together: at some of its places all ranks wait for all collectives
/// that were started before a call, each in an order of its own, and for some of their messages; a blocking collective
/// is such a place for all that were started. So it ends where the wait for a collective needs every member of it, and
/// of the rank's earlier collectives, to come to such a wait too, and the wait for a message only its peer's start.
/// `before(n)` is called before call n. Ranks: all.
std::vector<std::byte> run_program_with_common_waits(const ProgramGroups& groups, std::uint64_t number,
                                                     sim::TrafficClass traffic_class, Calls calls,
                                                     const std::function<void(std::uint64_t)>& before);

/// Runs programs first, first + step, ... before `end` both ways. Ranks: all. Throws: std::runtime_error where results
/// differ. Returns a digest of them.
std::uint64_t check_started_programs(Communicator& communicator, std::uint64_t first, std::uint64_t end,
                                     std::uint64_t step, Program of = Program::kAnyCalls);
/// A few of them.
std::uint64_t check_started_programs(Communicator& communicator);
/// A few of collectives whose sums are the same in any order.
std::uint64_t check_started_programs_of_any_order(Communicator& communicator);

/// Starts each kind of call with small and large messages; rank 1 waits when rank 0's wait has returned. `waits` counts
/// those of rank 0, and is shared. Ranks: two threads of one process. Throws: std::runtime_error where a result is
/// wrong.
void check_waits_need_starts_alone(Communicator& communicator, std::atomic<int>& waits);

}  // namespace droptest::comm
