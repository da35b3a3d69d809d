// SPDX-License-Identifier: Apache-2.0
#include "comm/lab/residual_theory.h"

#include <cmath>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/recovery_rules.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {
namespace {

// Mean rate over all elements, and whether all elements have this rate.
struct MissingRate {
  double mean = 0;
  bool uniform = true;
};

std::optional<MissingRate> missing_rate(const HalfNetwork& half, const std::vector<std::uint64_t>& message_elems,
                                        std::uint64_t element_bytes, std::uint64_t payload_bytes) {
  const std::optional<double> of_long = residual_rate(half);
  if (!of_long.has_value()) return std::nullopt;
  MissingRate rate;
  if (half.recovery == nullptr) return MissingRate{*of_long, true};
  double elems = 0;
  for (const std::uint64_t count : message_elems) {
    const sim::Packetizer packets(count, element_bytes, payload_bytes);
    const std::optional<double> of_message = residual_rate(half, packets.packets());
    if (!of_message.has_value()) return std::nullopt;
    if (count > 0 && std::abs(*of_message - *of_long) > 1e-12) rate.uniform = false;
    rate.mean += *of_message * static_cast<double>(count);
    elems += static_cast<double>(count);
  }
  if (elems > 0) rate.mean /= elems;
  return rate;
}

}  // namespace

ExpectedAllReduce expected_all_reduce(const ClassNetwork& network, int ranks, Inputs inputs, std::uint64_t elements,
                                      std::uint64_t element_bytes, ReduceOp op) {
  LossyAllReduce all_reduce = all_reduce_case(network, ranks, inputs, op);
  const bool feeds_back = network.recovery.error_feedback != ClassRecovery::ErrorFeedback::kOff;
  if (ranks > 1 && (network.reduce.recovery != nullptr || network.gather.recovery != nullptr)) {
    const std::vector<std::uint64_t> messages = path_entry(network.path).route == Route::kAggregated
                                                    ? std::vector<std::uint64_t>{elements}
                                                    : even_counts(elements, ranks);
    const auto reduce = missing_rate(network.reduce, messages, element_bytes, network.payload_bytes);
    const auto gather = missing_rate(network.gather, messages, element_bytes, network.payload_bytes);
    if (!reduce.has_value() || !gather.has_value()) return {};
    all_reduce.reduce_loss_rate = reduce->mean;
    all_reduce.gather_loss_rate = gather->mean;
    if (!reduce->uniform || !gather->uniform) return {expected_survival(all_reduce), std::nullopt};
  }
  return {expected_survival(all_reduce), feeds_back ? std::nullopt : expected_nmse(all_reduce)};
}

}  // namespace droptest::comm
