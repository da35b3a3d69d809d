// SPDX-License-Identifier: Apache-2.0
// The present speed of the cores: a loop of fused multiply-adds that touches no memory. Only the machine can lower its
// rate: another process, a hypervisor that takes a core away, or two logical cores on one physical core.
#pragma once

#include <vector>

namespace droptest::benchmarks {

/// The rates of one probe's windows, in GFLOP/s over all threads.
struct FmaRates {
  double median = 0;
  double lowest = 0;
  double share_of_dips = 0;  ///< share of windows below three quarters of the median, in [0, 1]
};

/// Runs `windows` windows of about 25 ms on that many threads, and waits for the slowest thread in each. Uses AVX-512
/// or AVX2 if the processor supports them.
FmaRates probe_fma(int threads, int windows);

}  // namespace droptest::benchmarks
