// SPDX-License-Identifier: Apache-2.0
// A reduction by the caller: it turns the contributions to a part into the part's result.
#pragma once

#include <cstddef>
#include <span>

namespace droptest::comm {

/// The reduction of one rank's own part, in Communicator::all_reduce_with() and reduce_scatter_with().
///
/// Owner: the caller, who waits for the collective. Thread safety: none needed; the collective calls it once, from one
/// thread, possibly the thread of another rank of the process while the caller waits.
class PartReduction {
 public:
  virtual ~PartReduction() = default;

  /// Writes the reduction of the part to every result. contributions[r] points to the part in rank r's input, results
  /// point to the outputs; the call gives the number and type of their elements. A result may be a contribution too,
  /// the same elements at the same place: each element is written after that element of all contributions has been
  /// read. Otherwise they do not overlap, and a contribution that is no result is not written. All are valid until it
  /// returns. Blocking: it must not call a communicator, nor wait for another rank.
  /// If ranks share memory and the backend reduces in place (Communicator::part_reductions()), reductions[r] is the
  /// reduction object of rank r, for reading; the writes of all ranks before their calls are visible. Otherwise it is
  /// empty.
  /// Throws: anything; the collective then fails on every rank, and its own rank gets the exception.
  virtual void reduce(std::span<const std::byte* const> contributions, std::span<std::byte* const> results,
                      std::span<const PartReduction* const> reductions) = 0;
};

}  // namespace droptest::comm
