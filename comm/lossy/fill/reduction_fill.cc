// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/fill/reduction_fill.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>

#include "comm/device/tensor_operations.h"
#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/recovery_rules.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

// The range `elements` of a message, as a range of a tensor that holds its elements [first, first + count).
sim::ElementRange clip(sim::ElementRange elements, std::uint64_t first, std::uint64_t count) {
  const std::uint64_t begin = std::clamp(elements.begin, first, first + count);
  const std::uint64_t end = std::clamp(elements.end, first, first + count);
  return {begin - first, end - first};
}

// Changes packets of a tensor that holds the message's elements from `first` on: at once on the host, in finish() on a
// device.
class Changes {
 public:
  Changes(Tensor data, std::uint64_t first, const sim::Packetizer& packets)
      : data_(data), first_(first), packets_(packets) {}

  void zero(std::uint64_t packet) {
    const sim::ElementRange elements = of(packet);
    if (data_.stream != nullptr) return zeroed_.push_back({elements.begin, elements.end});
    comm::zero(slice(data_, elements));
  }
  void scale(std::uint64_t packet, double factor) {
    const sim::ElementRange elements = of(packet);
    if (data_.stream != nullptr) return scaled_.push_back({elements.begin, elements.end, factor});
    comm::scale(slice(data_, elements), factor);
  }
  void finish() const {
    if (data_.stream == nullptr) return;
    change_runs_on_device(RunOperation::kZero, {}, data_, zeroed_);
    change_runs_on_device(RunOperation::kScale, {}, data_, scaled_);
  }

 private:
  sim::ElementRange of(std::uint64_t packet) const {
    return clip(packets_.elements(packet), first_, data_.count_elems());
  }

  Tensor data_;
  std::uint64_t first_;
  const sim::Packetizer& packets_;
  std::vector<ElementRun> zeroed_;
  std::vector<ElementRun> scaled_;
};

}  // namespace

void check_reduction(Fill fill, ReduceOp op, ElementType type, const Message& message) {
  const FillRule& rule = rule_of(fill);
  if (!rule.rescales() && !rule.keeps_own()) return;
  const std::string where = "message \"" + std::string(message.name) + "\" of class " +
                            std::string(sim::traffic_class_name(message.traffic_class)) + ": fill " +
                            std::string(fill_entry(fill).name);
  if (rule.keeps_own()) {
    if (op == ReduceOp::kMean) return;
    throw ConfigError(where + " of the reduce half puts this rank's contribution in the place of another's. Both " +
                      "estimate the same mean, but this reduction is a " + (op == ReduceOp::kMax ? "maximum" : "sum") +
                      "; want a mean, or the fill " + fill_names(sim::Half::kReduce));
  }
  if (op == ReduceOp::kMax) {
    throw ConfigError(where +
                      " rescales sums, but this reduction is a maximum; want zero or stale, or the class control");
  }
  if (is_integer(type)) {
    throw ConfigError(where + " rescales, but the elements are integers; want zero or stale, or the class control");
  }
}

bool can_lose(const HalfNetwork& half) {
  const auto loses = [](const std::shared_ptr<const sim::LossProcess>& loss) { return loss && loss->can_lose(); };
  return half.deadline || loses(half.loss) ||
         std::any_of(half.links.begin(), half.links.end(), [&loses](const LinkOverride& o) { return loses(o.loss); });
}

namespace {

double factor_of(const HalfNetwork& half, std::optional<double> missing_rate) {
  DROPTEST_CHECK(missing_rate.has_value(), "no residual rate of " + half.recovery->describe());
  return *missing_rate < 1 ? 1 / (1 - *missing_rate) : 0;
}

}  // namespace

double inverse_probability_factor(const HalfNetwork& half, std::uint64_t packets) {
  if (!can_lose(half)) return 1;
  return factor_of(half, residual_rate(half, packets));
}

double inverse_probability_factor(const HalfNetwork& half) {
  DROPTEST_CHECK(has_one_process(half), "inverse_probability with several loss processes");
  if (!can_lose(half)) return 1;
  return factor_of(half, residual_rate(half));
}

void LostContributions::start(std::uint64_t packets) {
  lost_.assign(packets, 0);
  total_ = 0;
}

void LostContributions::add(const sim::PacketMask* lost) {
  if (lost == nullptr) return;
  const auto words = lost->words();
  for (std::size_t w = 0; w < words.size(); ++w) {
    for (std::uint64_t bits = words[w]; bits != 0; bits &= bits - 1) {
      ++lost_[64 * w + static_cast<std::size_t>(std::countr_zero(bits))];
      ++total_;
    }
  }
}

void LostContributions::rescale(Tensor sums, std::uint64_t first_element, const sim::Packetizer& packets,
                                int contributions) const {
  if (total_ == 0) return;
  const auto all = static_cast<std::uint32_t>(contributions);
  Changes changes(sums, first_element, packets);
  for (std::uint64_t packet = 0; packet < lost_.size(); ++packet) {
    if (lost_[packet] == 0) continue;
    if (lost_[packet] == all) {
      changes.zero(packet);
    } else {
      changes.scale(packet, static_cast<double>(all) / static_cast<double>(all - lost_[packet]));
    }
  }
  changes.finish();
}

void LostContributions::zero_where_all_lost(Tensor results, std::uint64_t first_element, const sim::Packetizer& packets,
                                            int contributions) const {
  if (total_ == 0) return;
  Changes changes(results, first_element, packets);
  for (std::uint64_t packet = 0; packet < lost_.size(); ++packet) {
    if (lost_[packet] == static_cast<std::uint32_t>(contributions)) changes.zero(packet);
  }
  changes.finish();
}

}  // namespace droptest::comm
