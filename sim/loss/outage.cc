// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/outage.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "sim/loss/bernoulli.h"
#include "sim/loss/loss_registry.h"
#include "sim/loss/no_loss.h"
#include "sim/loss/probability.h"
#include "sim/loss/schedule.h"

namespace droptest::sim {
namespace {

std::unique_ptr<LossProcess> otherwise(const Parameters& parameters) {
  if (!parameters.has("otherwise")) return std::make_unique<NoLoss>();
  return make_loss_process(parameters.member("otherwise"));
}

}  // namespace

std::unique_ptr<LossProcess> make_outage(const Parameters& parameters) {
  parameters.allow_only({"model", "windows", "loss_rate", "otherwise"});
  const double loss_rate = parameters.has("loss_rate") ? parameters.probability("loss_rate") : 1;
  if (!is_drawable(loss_rate)) parameters.fail("loss_rate", kDrawable);
  const auto* list = std::get_if<Parameters::List>(&parameters.member("windows").value());
  if (list == nullptr || list->empty()) {
    parameters.fail("windows", "a list of {\"from_step\", \"to_step\"} that is not empty");
  }
  constexpr std::int64_t kLastStep = std::numeric_limits<std::int64_t>::max();
  std::vector<Phase> phases;
  std::int64_t end = 0;  // end of the window before
  for (const Parameters& window : *list) {
    window.require_members("a window of steps: {\"from_step\", \"to_step\"}");
    window.allow_only({"from_step", "to_step"});
    const std::int64_t from = window.integer("from_step", end, kLastStep - 1);
    // Windows that touch leave no steps between them.
    if (from > end) phases.push_back({static_cast<std::uint64_t>(end), otherwise(parameters)});
    end = window.integer("to_step", from + 1, kLastStep);
    phases.push_back({static_cast<std::uint64_t>(from), std::make_unique<Bernoulli>(loss_rate)});
  }
  phases.push_back({static_cast<std::uint64_t>(end), otherwise(parameters)});
  return std::make_unique<Schedule>(std::move(phases), "outage");
}

}  // namespace droptest::sim
