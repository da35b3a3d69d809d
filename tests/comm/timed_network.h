// SPDX-License-Identifier: Apache-2.0
// Networks with a virtual clock, for tests of its times.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "comm/lossy/lossy_communicator.h"
#include "sim/recovery/retransmission.h"

namespace droptest::comm {

constexpr auto kClass = sim::TrafficClass::kTpForward;
constexpr std::uint64_t kElements = 8192;
constexpr sim::LinkCost kLink{5e-6, 1e9};

/// All links are kLink.
TimeModel model_of(double compute_seconds = 0);
/// The same, of whose compute time, a second in each step, the rest passes with pass_compute_share().
TimeModel computing_model(double seconds_at_begin = 0);

/// Packets of 256 bytes, Bernoulli loss p where the path's shorthand puts it.
LossyOptions options_of(std::string_view path, double p, const TimeModel& model);

/// A retransmission protocol with its defaults and, where `rounds` is not 0, a budget.
std::shared_ptr<const sim::Retransmission> protocol(const std::string& name, std::int64_t rounds = 0);

}  // namespace droptest::comm
