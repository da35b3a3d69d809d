// SPDX-License-Identifier: Apache-2.0
// The factor that keeps gradients within the range of float16.
#pragma once

#include <cstdint>

#include "models/state_visitor.h"

namespace droptest::models {

struct LossScaleConfig {
  enum class Kind : std::uint8_t {
    kNone,     ///< losses are not scaled; a step that is not finite ends the run
    kStatic,   ///< always the initial scale
    kDynamic,  ///< less after an overflow, more after a series of good steps
  } kind = Kind::kNone;
  double initial = 65536;
  double growth = 2;     ///< dynamic: the scale's factor after `interval` good steps in a row
  double backoff = 0.5;  ///< its factor after an overflow
  std::uint64_t interval = 2000;
  std::uint64_t hysteresis = 1;      ///< the scale falls from the overflow of that number since the last growth on
  double minimum = 1;                ///< the scale does not fall below it; 0: no bound
  std::uint64_t give_up_after = 50;  ///< steps in a row that overflow, after which the run has diverged
  friend bool operator==(const LossScaleConfig&, const LossScaleConfig&) = default;
};

/// One rank's loss scale from step to step, and the count of steps that were skipped. The scale is a float, as
/// PyTorch's is: products with growth and backoff are formed in double and rounded once.
/// Source: Micikevicius et al. 2018, section 3.2; torch.cuda.amp.GradScaler; hysteresis and minimum as Megatron-LM,
/// whose count of overflows begins again at a growth only.
class LossScaler {
 public:
  explicit LossScaler(const LossScaleConfig& config)
      : config_(config), scale_(is_on() ? static_cast<float>(config.initial) : 1.0F), left_(config.hysteresis) {}

  bool is_on() const { return config_.kind != LossScaleConfig::Kind::kNone; }
  /// Of the losses of the next step.
  double scale() const { return scale_; }

  /// The step with that scale was finite on all ranks, or it was skipped.
  enum class Step : std::uint8_t { kFinite, kOverflow };
  void take(Step step);

  std::uint64_t skipped() const { return skipped_; }
  /// So many steps in a row overflowed that smaller scales do not help.
  bool gives_up() const { return is_on() && skipped_in_a_row_ >= config_.give_up_after; }

  /// Nothing where it is off. All names begin with kStateNames.
  void visit_state(StateVisitor& visitor);
  static constexpr const char* kStateNames = "loss scale";

 private:
  LossScaleConfig config_;
  float scale_;
  std::uint64_t good_ = 0;  ///< steps in a row since the last overflow or growth
  std::uint64_t left_;      ///< overflows that leave the scale as it is, and one
  std::uint64_t skipped_ = 0;
  std::uint64_t skipped_in_a_row_ = 0;
};

}  // namespace droptest::models
