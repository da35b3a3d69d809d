// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/compression/value_coder.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "comm/lossy/on_host.h"
#include "comm/visit_elements.h"

namespace droptest::comm {
namespace {

// A stream of draws for each class, half and rank.
std::uint64_t stream_of(const sim::Link& link) {
  constexpr unsigned kSourceBits = 16;
  return (static_cast<std::uint64_t>(link.traffic_class) << (kSourceBits + 1)) |
         (static_cast<std::uint64_t>(link.half) << kSourceBits) | link.source;
}

CodingErrors errors_between(ConstTensor exact, ConstTensor decoded) {
  CodingErrors errors;
  visit_elements(exact.type, [&]<class T>(std::type_identity<T>) {
    const auto before = exact.as<T>();
    const auto after = decoded.as<T>();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double value = number_of(before[i]);
      const double error = number_of(after[i]) - value;
      errors.error_energy += error * error;
      errors.energy += value * value;
    }
  });
  return errors;
}

}  // namespace

void ValueCoder::plan(FlowLedger& ledger, const sim::Link& contribution_link, std::uint64_t contributions,
                      const sim::Link& result_link, std::uint64_t results) {
  errors_ = {};
  contributions_ = sim::PhiloxEngine(seed_, sim::Purpose::kRounding, stream_of(contribution_link));
  contributions_.seek(ledger.take_draws(contribution_link, contributions));
  results_ = sim::PhiloxEngine(seed_, sim::Purpose::kRounding, stream_of(result_link));
  results_.seek(ledger.take_draws(result_link, results));
}

void ValueCoder::code(sim::Half half, Tensor values) {
  change_on_host(values, [&](Tensor host) {
    const std::vector<std::byte> exact(host.bytes.begin(), host.bytes.end());
    codec_.decode(codec_.encode({host.type, exact}, draws_of(half)), host);
    errors_.add(errors_between({host.type, exact}, host));
  });
}

}  // namespace droptest::comm
