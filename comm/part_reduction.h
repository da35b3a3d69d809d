// SPDX-License-Identifier: Apache-2.0
// A reduction as its caller wants it: what stands between the contributions to a part and its result.
#pragma once

#include <cstddef>
#include <span>

namespace droptest::comm {

/// How one rank reduces the part that it owns, in Communicator::all_reduce_with() and reduce_scatter_with().
///
/// Owner: the caller, who waits for the collective. Thread safety: none needed; the collective calls it once, from one
/// thread, which may be that of another rank of the process while the caller waits.
class PartReduction {
 public:
  virtual ~PartReduction() = default;

  /// Writes the reduction of the part to every result. contributions[r] is where rank r's input of the part begins, and
  /// results are where it is wanted; how many elements of which type they have is known from the call.
  /// A result may be a contribution too, the same elements at the same place: each element is written when that element
  /// of all contributions has been read. Otherwise they do not overlap, and what is no result is not written. All are
  /// valid until it returns. Blocking: it must not call a communicator, nor wait for another rank.
  /// Where ranks share memory and the backend reduces in place (Communicator::part_reductions()), reductions[r] is
  /// what rank r gave to the collective, for reading: what all of them did beforehand has happened. Elsewhere it is
  /// empty. Throws: anything; the collective then fails on every rank, and the exception is what its own rank gets.
  virtual void reduce(std::span<const std::byte* const> contributions, std::span<std::byte* const> results,
                      std::span<const PartReduction* const> reductions) = 0;
};

}  // namespace droptest::comm
