// SPDX-License-Identifier: Apache-2.0
#include "comm/lab/residual_theory.h"

#include <cmath>
#include <map>
#include <utility>

#include "comm/communicator.h"
#include "comm/lossy/paths/path_messages.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/recovery_rules.h"

namespace droptest::comm {
namespace {

// Mean rate over all elements, and whether all elements have this rate.
struct MissingRate {
  double mean = 0;
  bool is_uniform = true;
};

// The number of messages that a half sends, by packets and elements.
using Messages = std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t>;

std::optional<MissingRate> missing_rate(const HalfNetwork& half, const Messages& messages) {
  const std::optional<double> of_long = residual_rate(half);
  if (!of_long.has_value()) return std::nullopt;
  MissingRate rate{*of_long, true};
  if (half.recovery == nullptr) return rate;
  double sum = 0;
  double elems = 0;
  for (const auto& [size, number] : messages) {
    const auto& [packets, count] = size;
    if (count == 0) continue;
    const std::optional<double> of_message = residual_rate(half, packets);
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
  const PathEntry& path = path_in(network, elements);
  if (path.sub_calls != nullptr) return {};  // the sums of a compression
  LossyAllReduce all_reduce = all_reduce_case(network, ranks, inputs, op);
  all_reduce.path = path.name;
  const bool feeds_back = network.recovery.error_feedback != ClassRecovery::ErrorFeedback::kOff;
  if (ranks > 1 && (network.reduce.recovery != nullptr || network.gather.recovery != nullptr)) {
    Messages to_reduce, to_gather;
    PathMessages(network, path, ranks)
        .visit(CallShape{Operation::kAllReduce, type, elements}, [&](const PathMessage& message) {
          ++(message.half == sim::Half::kReduce ? to_reduce
                                                : to_gather)[{message.packets.packets(), message.elements.size()}];
        });
    const auto reduce = missing_rate(network.reduce, to_reduce);
    const auto gather = missing_rate(network.gather, to_gather);
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
