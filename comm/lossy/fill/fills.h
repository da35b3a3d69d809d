// SPDX-License-Identifier: Apache-2.0
// The values that a receiver puts in the place of lost packets: the one list of all fills (docs/recovery.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/loss/link.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// The fills, named as in a spec.
enum class Fill : std::uint8_t { kZero, kCountRescale, kInverseProbability, kStale, kOwn, kOwnScaled, kSkip, kAbsent };

/// The computation of a fill: paths read the rule, not the name.
struct FillRule {
  /// The value in the place of a lost one.
  enum class Source : std::uint8_t {
    kZero,        ///< none: a lost contribution is left out of its sum
    kRemembered,  ///< the last value that arrived at this position
    kOwn,         ///< the receiver's own value
    kSubstitute,  ///< Message::substitute
    kAbsent,      ///< zero, and the reader of Message::lost leaves the position out
  } source = Source::kZero;
  /// The factor on sums, or on the value in place of a result.
  enum class Scale : std::uint8_t {
    kOne,
    kByCount,    ///< ranks / contributions that arrived
    kByRate,     ///< 1 / (1 - loss rate) on each contribution that could be lost
    kSqrtRanks,  ///< sqrt(ranks) on an own contribution in place of a sum, 1 / sqrt(ranks) in place of a mean
  } scale = Scale::kOne;

  /// Whether each message leaves a memory for the next one.
  bool remembers() const { return source == Source::kRemembered; }
  /// Whether a receiver keeps its own values.
  bool keeps_own() const { return source == Source::kOwn; }
  /// Whether sums are scaled for their lost contributions.
  bool rescales() const { return scale == Scale::kByCount || scale == Scale::kByRate; }
  friend bool operator==(const FillRule&, const FillRule&) = default;
};

struct FillEntry {
  std::string_view name;
  Fill fill;
  FillRule rule;
  bool reduce_half;  ///< whether it has a meaning wherever contributions are summed
  bool gather_half;  ///< whether it has a meaning where values are copied
  std::string_view summary;
  /// Whether it has a meaning in the reduce half of means on a path on which each contribution travels by itself.
  bool means = false;
  bool has_meaning_in_gather_half(sim::TrafficClass traffic_class) const;
};
/// All fills, in the order of their enumerators.
const std::vector<FillEntry>& fills();
/// The entry of a fill.
const FillEntry& fill_entry(Fill fill);
/// The rule of a fill.
inline const FillRule& rule_of(Fill fill) { return fill_entry(fill).rule; }
/// Throws: ConfigError that lists the known names.
Fill fill_from_name(std::string_view name);
/// The names of the fills of a half, for errors: "zero, stale, own or own_scaled". skip and absent are left out,
/// because only a few classes support them.
std::string fill_names(sim::Half half);
/// The reason why a fill has no meaning for any reduction in the reduce half of a path. Absent: the fill has a meaning,
/// at least for means.
std::optional<std::string> reduce_fill_refusal(Fill fill, std::string_view path);

}  // namespace droptest::comm
