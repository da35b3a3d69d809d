// SPDX-License-Identifier: Apache-2.0
// How many gaps of each length theory expects between the losses of a link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "sim/loss/loss_process.h"

namespace droptest::sim {

/// Expected number of gaps of 2^i to 2^(i + 1) - 1 packets that lie between two losses of one stretch, by i < bins.
/// `stretches` has the number of stretches of neighbouring packets by length. All NaN if the process does not know its
/// gaps. In a stationary process a burst ends at any packet with probability f = loss_rate / mean_burst_packets. So a
/// stretch of n packets has f (n - 1 - m) P(gap = m) gaps of m packets: the lost packet before it, the gap and the lost
/// packet behind it have to fit. The formula is exact for short stretches too, which cut off long gaps.
std::vector<double> expected_gaps(const LossProcess& process, const std::map<std::uint64_t, std::uint64_t>& stretches,
                                  std::size_t bins);

}  // namespace droptest::sim
