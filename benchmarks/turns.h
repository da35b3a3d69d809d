// SPDX-License-Identifier: Apache-2.0
// A kernel against its yardstick and its naive twin, in turns so that all see the same machine.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "models/team.h"

namespace droptest::benchmarks {

using Floats = std::vector<float>;

/// A kernel, its yardstick and its naive twin, which may be missing.
struct Contest {
  std::function<void()> kernel;
  std::function<void()> yardstick;
  std::function<void()> naive;
  std::string ratio;  ///< counter for the kernel's rate over the yardstick's
  std::string rate;   ///< counter for `work` a second
  double work = 0;    ///< 1e9 bytes or floating-point operations in one call
  /// The error in the kernel's result, empty where there is none: asked before the rounds and after them.
  std::function<std::string()> mismatch;
};

/// Times the contestants round by round, and sets the state's iteration times and counters; ratios are the medians of
/// the rounds'. Skips with an error where there is a mismatch.
void compare_in_turns(benchmark::State& state, const Contest& contest);

/// Arguments of a kernel and memory for its results, in an order that the caller names.
using Tensors = std::vector<Floats>;

/// A loop over elements, on tensors that it may change.
struct LoopContest {
  std::function<void(Tensors&)> kernel;
  std::function<void(Tensors&)> naive;
  double moved_elems = 0;  ///< read and written by one call, each argument as often as the operation must
  /// Called after the check: sets tensors with which any number of calls sees ordinary numbers.
  std::function<void(Tensors&)> settle = [](Tensors&) {};
};

/// The kernel against a memcpy that reads and writes as many bytes on the same team, and against its naive twin on one
/// thread. Before, one call of each on equal tensors must leave equal tensors, up to rounding.
void compare_with_memcpy(benchmark::State& state, const Tensors& tensors, const LoopContest& contest,
                         const models::Team& team);

/// Numbers spread evenly over [-1, 1), different for each `start`.
Floats numbers(std::size_t count, double start = 0);

/// Which value differs from the expected one by more than rounding; empty where none does.
std::string mismatch_of(const Floats& values, const Floats& expected);

}  // namespace droptest::benchmarks
