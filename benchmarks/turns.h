// SPDX-License-Identifier: Apache-2.0
// Compares a kernel with a yardstick and with its naive twin, in turns, so that all see the same state of the machine.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "models/team.h"

namespace droptest::benchmarks {

using Floats = std::vector<float>;

/// A kernel, its yardstick, and its naive twin, which may be absent.
struct Contest {
  std::function<void()> kernel;
  std::function<void()> yardstick;
  std::function<void()> naive;
  std::string ratio;  ///< name of the counter for the kernel's rate divided by the yardstick's
  std::string rate;   ///< name of the counter for `work` per second
  double work = 0;    ///< 1e9 bytes or floating-point operations in one call
  /// Returns the error in the kernel's result, empty if there is none. It is called before the rounds and after them.
  std::function<std::string()> mismatch;
};

/// Measures the contestants round by round, and sets the state's iteration times and counters. Ratios are medians over
/// the rounds. Skips with an error if there is a mismatch.
void compare_in_turns(benchmark::State& state, const Contest& contest);

/// Arguments of a kernel and memory for its results, in an order that the caller names.
using Tensors = std::vector<Floats>;

/// A loop over elements, on tensors that it may change.
struct LoopContest {
  std::function<void(Tensors&)> kernel;
  std::function<void(Tensors&)> naive;
  double moved_elems = 0;  ///< elements read and written by one call, each argument as often as necessary
  /// Called after the check. It sets tensors with which any number of calls has ordinary numbers.
  std::function<void(Tensors&)> settle = [](Tensors&) {};
};

/// Compares the kernel with a memcpy that reads and writes as many bytes on the same team, and with its naive twin on
/// one thread. Before that, one call of each on equal tensors must give equal tensors, up to rounding.
void compare_with_memcpy(benchmark::State& state, const Tensors& tensors, const LoopContest& contest,
                         const models::Team& team);

/// Numbers spread evenly over [-1, 1), different for each `start`.
Floats numbers(std::size_t count, double start = 0);

/// Names the value that differs from the expected one by more than rounding; empty if none does.
std::string mismatch_of(const Floats& values, const Floats& expected);

}  // namespace droptest::benchmarks
