// SPDX-License-Identifier: Apache-2.0
// Networks with a virtual clock, for tests of virtual time.
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

/// A time model in which all links are kLink.
TimeModel model_of(double compute_seconds = 0);
/// model_of() with a compute time of one second in each step; pass_compute_share() passes the rest of it.
TimeModel computing_model(double seconds_at_begin = 0);

/// A network with packets of 256 bytes and Bernoulli loss p in the halves that the path's shorthand selects.
LossyOptions options_of(std::string_view path, double p, const TimeModel& model);

/// A retransmission protocol with its defaults; with a budget if `rounds` is not 0.
std::shared_ptr<const sim::Retransmission> protocol(const std::string& name, std::int64_t rounds = 0);

}  // namespace droptest::comm
