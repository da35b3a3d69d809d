// SPDX-License-Identifier: Apache-2.0
// Sums over tensors in device memory, for the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/stream.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

// Sums over the elements of one tensor, or of a tensor against another, in double. The order of additions is fixed, but
// differs from the host's. These functions block: they wait for the stream.

/// The sums of SampleSums with the same names.
struct ErrorSums {
  double error_energy = 0;
  double exact_energy = 0;
  double result_energy = 0;
  double inner_product = 0;
  double error_sum = 0;
};
ErrorSums error_sums_on_device(ConstTensor exact, ConstTensor result);
/// The differences between the values of ranks: SampleSums::divergence_energy and divergence_max.
struct DivergenceSums {
  double energy = 0;
  double max = 0;
};
DivergenceSums divergence_sums_on_device(ElementType type, std::uint64_t count_elems,
                                         std::span<const std::byte* const> contributions, Stream& stream);
/// The sum of squares of each packet; infinite for a packet with a NaN.
std::vector<double> packet_energies_on_device(ConstTensor data, const sim::Packetizer& packets);

}  // namespace droptest::comm
