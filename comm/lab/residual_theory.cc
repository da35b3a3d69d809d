// SPDX-License-Identifier: Apache-2.0
#include "comm/lab/residual_theory.h"

#include <cmath>
#include <map>

#include "comm/communicator.h"
#include "comm/lossy/paths/path_messages.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/recovery_rules.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {
namespace {

// Mean rate over all elements, and whether all elements have this rate.
struct MissingRate {
  double mean = 0;
  bool is_uniform = true;
};

// `messages`: how many of each size in elements a half sends.
std::optional<MissingRate> missing_rate(const HalfNetwork& half, const std::map<std::uint64_t, std::uint64_t>& messages,
                                        ElementType type, std::uint64_t payload_bytes) {
  const std::optional<double> of_long = residual_rate(half);
  if (!of_long.has_value()) return std::nullopt;
  MissingRate rate{*of_long, true};
  if (half.recovery == nullptr) return rate;
  double sum = 0;
  double elems = 0;
  for (const auto& [count, number] : messages) {
    const sim::Packetizer packets(count, element_bytes(type), payload_bytes);
    const std::optional<double> of_message = residual_rate(half, packets.packets());
    if (!of_message.has_value()) return std::nullopt;
    if (std::abs(*of_message - *of_long) > 1e-12) rate.is_uniform = false;
    const double of_size = static_cast<double>(count) * static_cast<double>(number);
    sum += *of_message * of_size;
    elems += of_size;
  }
  if (elems > 0) rate.mean = sum / elems;
  return rate;
}

}  // namespace

ExpectedAllReduce expected_all_reduce(const ClassNetwork& network, int ranks, Inputs inputs, std::uint64_t elements,
                                      ElementType type, ReduceOp op) {
  LossyAllReduce all_reduce = all_reduce_case(network, ranks, inputs, op);
  const bool feeds_back = network.recovery.error_feedback != ClassRecovery::ErrorFeedback::kOff;
  if (ranks > 1 && (network.reduce.recovery != nullptr || network.gather.recovery != nullptr)) {
    const PathEntry& path = path_entry(network.path);
    std::map<std::uint64_t, std::uint64_t> to_reduce, to_gather;  // messages by size
    PathMessages(network, path, ranks)
        .visit(CallShape{Operation::kAllReduce, type, elements}, [&](const PathMessage& message) {
          ++(message.half == sim::Half::kReduce ? to_reduce : to_gather)[message.elements.size()];
        });
    for (auto* messages : {&to_reduce, &to_gather}) messages->erase(0);
    const auto reduce = missing_rate(network.reduce, to_reduce, type, network.payload_bytes);
    const auto gather = missing_rate(network.gather, to_gather, type, network.payload_bytes);
    if (!reduce.has_value() || !gather.has_value()) return {};
    all_reduce.reduce_loss_rate = reduce->mean;
    all_reduce.gather_loss_rate = gather->mean;
    if (!reduce->is_uniform || !gather->is_uniform) {
      if (path.route == Route::kManyHops) return {};  // survival is a product of rates
      return {expected_survival(all_reduce), std::nullopt};
    }
  }
  return {expected_survival(all_reduce), feeds_back ? std::nullopt : expected_nmse(all_reduce)};
}

}  // namespace droptest::comm
