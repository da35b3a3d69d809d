// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/schedule.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "sim/error.h"
#include "sim/loss/loss_registry.h"
#include "sim/loss/no_loss.h"

namespace droptest::sim {

Schedule::Schedule(std::vector<Phase> phases, std::string name) : phases_(std::move(phases)), name_(std::move(name)) {
  if (phases_.empty()) throw ConfigError(name_ + ": got no phases, want at least one");
  for (std::size_t i = 1; i < phases_.size(); ++i) {
    if (phases_[i].from_step > phases_[i - 1].from_step) continue;
    throw ConfigError(name_ + ": phase " + std::to_string(i) + " begins at step " +
                      std::to_string(phases_[i].from_step) + ", want a step after " +
                      std::to_string(phases_[i - 1].from_step) + ", where the phase before begins");
  }
  if (phases_.front().from_step > 0) phases_.insert(phases_.begin(), Phase{0, std::make_unique<NoLoss>()});
}

const LossProcess& Schedule::at_step(std::uint64_t step) const {
  const auto after =
      std::find_if(phases_.begin() + 1, phases_.end(), [step](const Phase& phase) { return phase.from_step > step; });
  return (after - 1)->loss->at_step(step);
}

bool Schedule::can_lose() const {
  return std::any_of(phases_.begin(), phases_.end(), [](const Phase& phase) { return phase.loss->can_lose(); });
}

bool Schedule::can_lose_all() const {
  return std::any_of(phases_.begin(), phases_.end(), [](const Phase& phase) { return phase.loss->can_lose_all(); });
}

bool Schedule::keeps_time() const {
  return std::any_of(phases_.begin(), phases_.end(), [](const Phase& phase) { return phase.loss->keeps_time(); });
}

void Schedule::draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const {
  last().draw(seed, link, first_packet, lost);
}

void Schedule::draw_message(std::uint64_t seed, const Link& link, const MessagePosition& place,
                            PacketMask& lost) const {
  last().draw_message(seed, link, place, lost);
}

double Schedule::all_arrive_probability(std::uint64_t packets) const {
  double lowest = 1;
  for (const Phase& phase : phases_) lowest = std::min(lowest, phase.loss->all_arrive_probability(packets));
  return lowest;
}

std::string Schedule::describe() const {
  std::string text = name_ + "(";
  for (const Phase& phase : phases_) {
    text += (&phase == &phases_.front() ? "" : ", ") + std::string("from step ") + std::to_string(phase.from_step) +
            ": " + phase.loss->describe();
  }
  return text + ")";
}

std::unique_ptr<LossProcess> make_schedule(const Parameters& parameters) {
  parameters.allow_only({"model", "phases"});
  const auto* list = std::get_if<Parameters::List>(&parameters.member("phases").value());
  if (list == nullptr || list->empty())
    parameters.fail("phases", "a list of {\"from_step\", \"loss\"} that is not empty");
  std::vector<Phase> phases;
  for (const Parameters& phase : *list) {
    phase.require_members("a phase: {\"from_step\", \"loss\"}");
    phase.allow_only({"from_step", "loss"});
    const auto from =
        static_cast<std::uint64_t>(phase.integer("from_step", 0, std::numeric_limits<std::int64_t>::max()));
    if (!phases.empty() && from <= phases.back().from_step) {
      phase.fail("from_step",
                 "a step after " + std::to_string(phases.back().from_step) + ", where the phase before begins");
    }
    phases.push_back({from, make_loss_process(phase.member("loss"))});
  }
  return std::make_unique<Schedule>(std::move(phases), "schedule");
}

}  // namespace droptest::sim
