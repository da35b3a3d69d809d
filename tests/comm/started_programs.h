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
  kStarted,  ///< started calls; each rank draws its order of waits, and drops some calls instead
};

/// A group and two groups that are split from it: even or odd ranks, and all ranks in reversed order.
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

/// The kinds of calls in a program. NCCL's communicators have no messages, because some would wait for the sender's
/// next call.
enum class Program : std::uint8_t { kAnyCalls, kCollectives };

/// Runs program `number` with messages of a class, and returns the bytes of all outputs. Ranks: all.
std::vector<std::byte> run_started_program(const ProgramGroups& groups, std::uint64_t number,
                                           sim::TrafficClass traffic_class, Calls calls,
                                           Program of = Program::kAnyCalls);

/// Runs a program with joint waits. At some calls, all ranks wait for all collectives that were started before that
/// call, each rank in its own order, and for some of their messages. A blocking collective is such a joint wait for all
/// started collectives. So the program also ends on communicators on which the wait for a collective needs a wait of
/// every member, for this collective and the rank's earlier ones, and the wait for a message only needs its start by
/// the peer. `before(n)` is called before call n. Ranks: all.
std::vector<std::byte> run_program_with_common_waits(const ProgramGroups& groups, std::uint64_t number,
                                                     sim::TrafficClass traffic_class, Calls calls,
                                                     const std::function<void(std::uint64_t)>& before);

/// Runs the programs first, first + step, ... below `end`, blocking and started. Ranks: all. Throws: std::runtime_error
/// if results differ. Returns a digest of the results.
std::uint64_t check_started_programs(Communicator& communicator, std::uint64_t first, std::uint64_t end,
                                     std::uint64_t step, Program of = Program::kAnyCalls);
/// Runs a few of these programs.
std::uint64_t check_started_programs(Communicator& communicator);
/// Runs a few programs of collectives; their sums are equal in any order.
std::uint64_t check_started_programs_of_any_order(Communicator& communicator);

/// Starts each kind of call with small and large messages; rank 1 waits only after rank 0's wait has returned. `waits`
/// counts the waits of rank 0, and is shared by the two ranks. Ranks: two threads of one process. Throws:
/// std::runtime_error if a result is wrong.
void check_waits_need_starts_alone(Communicator& communicator, std::atomic<int>& waits);

}  // namespace droptest::comm
