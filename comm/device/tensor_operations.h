// SPDX-License-Identifier: Apache-2.0
// What collectives and the loss layer do to the elements of tensors, for tensors in device memory. Each operation gives
// the bits of its twin on the host, unless it says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/stream.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// Elements of a tensor that are treated alike.
struct ElementRun {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  double factor = 1;  ///< of kScale

  friend bool operator==(const ElementRun&, const ElementRun&) = default;
};

/// What is done to each element x of the runs, with y the same element of another tensor: x = 0, the lowest value of
/// the type, y, x + y, max(x, y), or x * factor, which is rounded to the type first (float for bfloat16).
enum class RunOperation : std::uint8_t { kZero, kLowest, kCopy, kSum, kMax, kScale };

/// One launch for all runs. `from` has the shape of `data`, or is empty where the operation does not read it.
void change_runs_on_device(RunOperation operation, ConstTensor from, Tensor data, std::span<const ElementRun> runs);

/// How sums with holes are made; comm/lossy/fill/delivered_reduction.h says what each means.
struct HoleRules {
  double contributions_factor = 1;
  int exempt = -1;
  enum class Sums : std::uint8_t { kAsTheyAre, kByCount } sums = Sums::kAsTheyAre;
};

/// A part of messages that ranks contribute, one mask for each of them; null: all arrived.
struct Contributions {
  sim::Packetizer packets;  ///< of the whole messages
  sim::ElementRange part;   ///< what the inputs and outputs hold
  std::span<const sim::PacketMask* const> lost;
};

/// reduce_in_rank_order() and DeliveredReduction on a device, in one launch.
void reduce_on_device(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                      std::span<std::byte* const> outputs, std::uint64_t count_elems, Stream& stream);
void reduce_delivered_on_device(ReduceOp op, ElementType type, const Contributions& contributions,
                                const HoleRules& rules, std::span<const std::byte* const> inputs,
                                std::span<std::byte* const> outputs, Stream& stream);
/// What is lost is replaced by what `remembered` has of it, and that by what arrives.
void reduce_with_last_on_device(ReduceOp op, const Contributions& contributions, Tensor remembered,
                                std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs);

/// Sums over the elements of one tensor, or of a tensor against another, in double. The order of additions is fixed,
/// but is not the host's. Blocking: these wait for the stream.
struct ErrorSums {
  double error_energy = 0;
  double exact_energy = 0;
  double result_energy = 0;
  double inner_product = 0;
  double error_sum = 0;
};
ErrorSums error_sums_on_device(ConstTensor exact, ConstTensor result);
struct DivergenceSums {
  double energy = 0;
  double max = 0;
};
DivergenceSums divergence_sums_on_device(ElementType type, std::uint64_t count_elems,
                                         std::span<const std::byte* const> contributions, Stream& stream);
/// The sum of squares of each packet; a NaN among them makes it infinite.
std::vector<double> packet_energies_on_device(ConstTensor data, const sim::Packetizer& packets);

}  // namespace droptest::comm
