// SPDX-License-Identifier: Apache-2.0
// The loss scale, which moves gradients into the range of float16.
#pragma once

#include <cstdint>

#include "models/state_visitor.h"

namespace droptest::models {

struct LossScaleConfig {
  enum class Kind : std::uint8_t {
    kNone,     ///< losses are not scaled; a step that is not finite ends the run
    kStatic,   ///< always the initial scale
    kDynamic,  ///< decreases after an overflow, increases after a series of good steps
  } kind = Kind::kNone;
  double initial = 65536;
  double growth = 2;     ///< kDynamic: factor of the scale after `interval` good steps in a row
  double backoff = 0.5;  ///< kDynamic: factor of the scale after an overflow
  std::uint64_t interval = 2000;
  /// kDynamic: the number of the overflow since the last growth at which the scale first decreases; it decreases at
  /// each later one, too.
  std::uint64_t hysteresis = 1;
  double minimum = 1;                ///< lower bound of the scale; 0: no bound
  std::uint64_t give_up_after = 50;  ///< number of overflows in a row after which the run has diverged

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("kind", kind, {{"static", Kind::kStatic}, {"dynamic", Kind::kDynamic}});
    visit("initial", initial);
    visit("growth", growth);
    visit("backoff", backoff);
    visit("interval", interval);
    visit("hysteresis", hysteresis);
    visit("minimum", minimum);
    visit("give_up_after", give_up_after);
  }
  friend bool operator==(const LossScaleConfig&, const LossScaleConfig&) = default;
};

/// One rank's loss scale from step to step, and the number of skipped steps. The scale is a float, as in PyTorch:
/// multiplications with growth and backoff are computed in double and rounded once.
/// Source: Micikevicius et al. 2018, section 3.2; torch.cuda.amp.GradScaler; hysteresis and minimum as in Megatron-LM,
/// which resets the count of overflows only at a growth.
class LossScaler {
 public:
  explicit LossScaler(const LossScaleConfig& config)
      : config_(config), scale_(is_on() ? static_cast<float>(config.initial) : 1.0F), left_(config.hysteresis) {}

  bool is_on() const { return config_.kind != LossScaleConfig::Kind::kNone; }
  /// The scale of the losses of the next step.
  double scale() const { return scale_; }

  /// The outcome of a step: finite on all ranks, or skipped.
  enum class Step : std::uint8_t { kFinite, kOverflow };
  void take(Step step);

  std::uint64_t skipped() const { return skipped_; }
  /// Whether give_up_after steps in a row overflowed, so that smaller scales do not help.
  bool gives_up() const { return is_on() && skipped_in_a_row_ >= config_.give_up_after; }

  /// Shows nothing if scaling is off. All names begin with kStateNames.
  void visit_state(StateVisitor& visitor);
  static constexpr const char* kStateNames = "loss scale";

 private:
  LossScaleConfig config_;
  float scale_;
  std::uint64_t good_ = 0;  ///< good steps since the last overflow or growth
  std::uint64_t left_;      ///< overflows until the scale falls; 0: it falls at each one
  std::uint64_t skipped_ = 0;
  std::uint64_t skipped_in_a_row_ = 0;
};

}  // namespace droptest::models
