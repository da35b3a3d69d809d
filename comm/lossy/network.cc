// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/network.h"

#include <algorithm>
#include <string>

#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/recovery_rules.h"
#include "sim/error.h"

namespace droptest::comm {

bool has_one_process(const HalfNetwork& half) {
  return half.links.empty() && (half.loss == nullptr || &half.loss->at_step(0) == half.loss.get());
}

namespace {

void require_destinations(const HalfNetwork& half, std::string_view name, std::string_view why) {
  for (std::size_t i = 0; i < half.links.size(); ++i) {
    if (!half.links[i].needs_destination()) continue;
    throw ConfigError("links/" + std::to_string(i) + " of the " + std::string(name) +
                      " half: got destinations, ranks or groups, but " + std::string(why) +
                      ", so its links have a source only; want sources");
  }
}

}  // namespace

void apply_loss(ClassNetwork& network, const std::shared_ptr<const sim::LossProcess>& loss) {
  const LossShorthand halves = path_entry(network.path).shorthand;
  network.reduce.loss = loss;
  network.gather.loss = halves == LossShorthand::kBothHalves ? loss : nullptr;
}

void apply_fill(ClassNetwork& network, Fill fill) {
  const FillEntry& entry = fill_entry(fill);
  network.reduce.fill = entry.reduce_half ? fill : Fill::kZero;
  network.gather.fill = entry.gather_half ? fill : Fill::kZero;
}

void apply_recovery(ClassNetwork& network, const std::shared_ptr<const sim::LinkRecovery>& recovery) {
  network.reduce.recovery = recovery;
  network.gather.recovery = recovery;
}

// An adversary's losses follow from a message's content: both ends of the link must have it, and no other rank may need
// the losses.
std::optional<SelectionRefusal> selection_refusal(const ClassNetwork& network) {
  if (network.gather.selection != LossSelection::kByFate) {
    return SelectionRefusal{"gather",
                            "got \"largest_norm\", which is defined for contributions to a sum; want \"by_fate\""};
  }
  if (network.reduce.selection == LossSelection::kByFate || path_entry(network.path).route == Route::kOneHop)
    return std::nullopt;
  return SelectionRefusal{"reduce", "got \"largest_norm\" on path " + std::string(network.path) +
                                        ", where a rank does not have the content of all contributions, so it cannot "
                                        "know their losses; want the path direct, or \"by_fate\""};
}

std::string_view ClassNetwork::path_of(std::uint64_t elems) const {
  for (const SizedPath& small : sized_paths) {
    if (elems <= small.up_to_elems) return small.path;
  }
  return path;
}

sim::Packetizer ClassNetwork::packets(ElementType type, std::uint64_t count_elems) const {
  if (compression.kind == CompressionKind::kNone) return {count_elems, element_bytes(type), payload_bytes};
  return {count_elems, coding_of(compression, type), payload_bytes, count_elems * element_bytes(type)};
}

ClassNetwork ClassNetwork::of_size(std::uint64_t elems) const {
  ClassNetwork network = *this;
  network.path = path_of(elems);
  network.sized_paths.clear();
  return network;
}

void validate(const ClassNetwork& network) {
  for (std::size_t i = 0; i < network.sized_paths.size(); ++i) {
    const std::uint64_t size = network.sized_paths[i].up_to_elems;
    const std::uint64_t before = i == 0 ? 0 : network.sized_paths[i - 1].up_to_elems;
    if (size <= before) {
      throw ConfigError("sized_paths/" + std::to_string(i) + "/up_to_elements: got " + std::to_string(size) +
                        ", want more than " + std::to_string(before));
    }
    validate(network.of_size(size));
  }
  const PathEntry& path = path_entry(network.path);
  if (network.consistency == Consistency::kShared && !path.can_share) {
    throw ConfigError("consistency: got shared, but on path " + std::string(path.name) + " " +
                      std::string(kSharesNoFates) + "; want per_receiver");
  }
  if (path.has_groups && network.group_ranks < 1) {
    throw ConfigError("group_ranks: got " + std::to_string(network.group_ranks) + ", but path " +
                      std::string(path.name) + " needs the number of ranks in a group; want at least 1");
  }
  if (const auto refusal = reduce_fill_refusal(network.reduce.fill, network.path)) {
    throw ConfigError("fill of the reduce half: " + *refusal);
  }
  const FillEntry& gather = fill_entry(network.gather.fill);
  if (!gather.gather_half) {
    throw ConfigError("fill of the gather half: got " + std::string(gather.name) +
                      ", but each value there has one source, so nothing is summed that could be rescaled; "
                      "want " +
                      fill_names(sim::Half::kGather));
  }
  if (gather.rule.scale == FillRule::Scale::kSqrtRanks && !path_entry(network.path).can_share) {
    throw ConfigError(
        "fill of the gather half: got own_scaled on path " + std::string(network.path) +
        ", where a rank has partial sums of several ranks, with another spread than one rank's values; want own");
  }
  if (path.route == Route::kAggregated) {
    require_destinations(network.reduce, "reduce", "a contribution that is lost is missed by all ranks");
  }
  if (network.consistency == Consistency::kShared) {
    require_destinations(network.gather, "gather", "with shared fates all receivers miss the same packets");
  }
  const bool needs_rate = network.reduce.rule().scale == FillRule::Scale::kByRate;
  if (needs_rate && !has_one_process(network.reduce)) {
    throw ConfigError(
        "fill of the reduce half: got inverse_probability, which scales every contribution by one loss rate, but the "
        "rate differs between links or steps; want zero, count_rescale or stale");
  }
  if (needs_rate && network.reduce.deadline) {
    throw ConfigError("fill of the reduce half: got inverse_probability with a deadline, which " +
                      std::string(kLatenessHasNoRate));
  }
  if (const std::optional<SelectionRefusal> refusal = selection_refusal(network)) {
    throw ConfigError("selection of the " + std::string(refusal->half) + " half: " + refusal->reason);
  }
  if (network.payload_bytes == 0 || network.payload_bytes % 8 != 0) {
    throw ConfigError("payload_bytes: got " + std::to_string(network.payload_bytes) +
                      ", want a positive multiple of 8");
  }
  if (const std::optional<CompressionRefusal> refusal = compression_refusal(network)) {
    throw ConfigError(refusal->pointer.substr(1) + ": " + refusal->reason);
  }
  const std::vector<RecoveryRefusal> refusals = recovery_refusals(network);
  if (!refusals.empty()) throw ConfigError(refusals[0].pointer.substr(1) + ": " + refusals[0].reason);
}

bool can_lose_all(const HalfNetwork& half) {
  const auto loses = [](const LinkOverride& link) { return link.loss != nullptr && link.loss->can_lose_all(); };
  return (half.loss != nullptr && half.loss->can_lose_all()) ||
         std::any_of(half.links.begin(), half.links.end(), loses);
}

bool keeps_time(const Network& network) {
  const auto looks = [](const sim::LossProcess* loss) { return loss != nullptr && loss->keeps_time(); };
  for (const auto& of_class : network.classes) {
    if (!of_class) continue;
    for (const HalfNetwork* half : {&of_class->reduce, &of_class->gather}) {
      if (looks(half->loss.get())) return true;
      for (const LinkOverride& link : half->links) {
        if (looks(link.loss.get())) return true;
      }
    }
  }
  return false;
}

bool sends_again(const Network& network) {
  const auto repeats = [](const HalfNetwork& half) {
    return half.recovery != nullptr && half.recovery->sends_again() && (half.loss != nullptr || !half.links.empty());
  };
  return std::any_of(network.classes.begin(), network.classes.end(), [&](const auto& of_class) {
    return of_class && (repeats(of_class->reduce) || repeats(of_class->gather));
  });
}

}  // namespace droptest::comm
