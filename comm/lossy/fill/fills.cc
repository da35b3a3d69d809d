// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/fill/fills.h"

#include "comm/lossy/paths/path_registry.h"
#include "sim/error.h"

namespace droptest::comm {

const std::vector<FillEntry>& fills() {
  using Source = FillRule::Source;
  using Scale = FillRule::Scale;
  static const std::vector<FillEntry> entries = {
      {"zero", Fill::kZero, {}, true, true, "nothing arrived: zero (a lost contribution is left out of the sum)"},
      {"count_rescale",
       Fill::kCountRescale,
       {Source::kZero, Scale::kByCount},
       true,
       false,
       "sum of the contributions that arrived x ranks / their number"},
      {"inverse_probability",
       Fill::kInverseProbability,
       {Source::kZero, Scale::kByRate},
       true,
       false,
       "contributions that could be lost x 1 / (1 - loss rate): unbiased"},
      {"stale",
       Fill::kStale,
       {Source::kRemembered},
       true,
       true,
       "the last value that arrived at this position; zero before the first"},
      {"own",
       Fill::kOwn,
       {Source::kOwn},
       false,
       true,
       "the rank keeps its own values: its input, or the output's earlier content; of means along direct in both "
       "halves",
       true},
      {"own_scaled",
       Fill::kOwnScaled,
       {Source::kOwn, Scale::kSqrtRanks},
       false,
       true,
       "own x sqrt(ranks) for results of a sum, which has the spread of independent contributions; else own"},
      {"skip",
       Fill::kSkip,
       {Source::kSubstitute},
       false,
       true,
       "of messages between the stages of a pipeline: the input of the stage that sent them, which is sent past it"},
      {"absent",
       Fill::kAbsent,
       {Source::kAbsent},
       false,
       true,
       "of messages of sequence_forward: attention leaves out the tokens of a head whose key or value lost an element"},
  };
  return entries;
}

// A receiver of a message between stages or of sequence_forward has no value of its own. Other classes have no stage to
// send past. A computation can leave out only keys and values, which travel in sequence_forward.
bool FillEntry::has_meaning_in_gather_half(sim::TrafficClass traffic_class) const {
  const bool between_stages = sim::traffic_class_entry(traffic_class).is_between_stages;
  if (rule.source == FillRule::Source::kSubstitute) return between_stages;
  if (rule.source == FillRule::Source::kAbsent) return traffic_class == sim::TrafficClass::kSequenceForward;
  const bool has_no_own = between_stages || traffic_class == sim::TrafficClass::kSequenceForward;
  return gather_half && !(has_no_own && rule.keeps_own());
}

const FillEntry& fill_entry(Fill fill) {
  const auto row = static_cast<std::size_t>(fill);
  DROPTEST_CHECK(row < fills().size() && fills()[row].fill == fill, "no row of fill " + std::to_string(row));
  return fills()[row];
}

Fill fill_from_name(std::string_view name) {
  std::string known;
  for (const FillEntry& entry : fills()) {
    if (entry.name == name) return entry.fill;
    known.append(known.empty() ? "" : ", ").append(entry.name);
  }
  throw ConfigError("fill: got \"" + std::string(name) + "\", want one of " + known);
}

std::string fill_names(sim::Half half) {
  std::vector<std::string_view> names;
  for (const FillEntry& entry : fills()) {
    const bool of_some_classes =
        entry.rule.source == FillRule::Source::kSubstitute || entry.rule.source == FillRule::Source::kAbsent;
    if (half == sim::Half::kReduce ? entry.reduce_half : entry.gather_half && !of_some_classes) {
      names.push_back(entry.name);
    }
  }
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text.append(i == 0 ? "" : i + 1 == names.size() ? " or " : ", ").append(names[i]);
  }
  return text;
}

std::optional<std::string> reduce_fill_refusal(Fill fill, std::string_view path) {
  const FillEntry& entry = fill_entry(fill);
  if (entry.reduce_half) return std::nullopt;
  if (entry.means && path_entry(path).route == Route::kOneHop) return std::nullopt;
  std::string reason = "got " + std::string(entry.name);
  if (entry.means) {
    reason += " on path " + std::string(path) +
              ", but no receiver there could put its own contribution in the place of a lost one: a lost packet " +
              (path_entry(path).route == Route::kAggregated ? "is missing at the aggregation point"
                                                            : "carries the contributions of several ranks") +
              "; want the path direct, or the fill ";
  } else {
    reason +=
        ", but contributions of several ranks are summed there and no rank has a value of its own that stands "
        "for another's; want ";
  }
  return reason + fill_names(sim::Half::kReduce);
}

}  // namespace droptest::comm
