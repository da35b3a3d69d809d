// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/training_history.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace droptest::experiments {
namespace {

/// Adds up all members.
void add_to(comm::VirtualTime& total, const comm::VirtualTime& more) {
  total.seconds += more.seconds;
  total.compute_seconds += more.compute_seconds;
  total.idle_seconds += more.idle_seconds;
  for (std::size_t of = 0; of < total.exposed.size(); ++of) total.exposed[of] += more.exposed[of];
  total.network_seconds += more.network_seconds;
  total.packets += more.packets;
  total.repeated += more.repeated;
  total.timeouts += more.timeouts;
  total.late += more.late;
}

}  // namespace

void TrainingHistory::start_from(StartRecord record) {
  resumed_at_.clear();
  started_from_ = std::move(record);
}

void TrainingHistory::begin_membership(const nlohmann::json& before, std::uint64_t step) {
  earlier_ = before.dump();
  time_before_ = time_so_far_;
  begun_after_ = counted_to_step_ = step;
  counted_ = "{}";
}

nlohmann::json TrainingHistory::count(std::uint64_t step, nlohmann::json classes) {
  counted_ = classes.dump();
  counted_to_step_ = step;
  return all_with(step, std::move(classes));
}

nlohmann::json TrainingHistory::as_counted(std::uint64_t step) const {
  nlohmann::json all = all_with(step, nlohmann::json::parse(counted_));
  if (counted_to_step_ < step) all.back()["counted_to_step"] = counted_to_step_;
  return all;
}

nlohmann::json TrainingHistory::all_with(std::uint64_t to_step, nlohmann::json classes) const {
  nlohmann::json all = nlohmann::json::array();
  if (!earlier_.empty()) all = nlohmann::json::parse(earlier_);
  all.push_back({{"epoch", membership_},
                 {"from_step", begun_after_},
                 {"to_step", to_step},
                 {"layout", layout_},
                 {"classes", std::move(classes)}});
  return all;
}

comm::VirtualTime TrainingHistory::with_time_before(comm::VirtualTime own) {
  add_to(own, time_before_);
  return time_so_far_ = own;
}

void TrainingHistory::visit_state(sim::StateVisitor& visitor) {
  visit_values(visitor, time_before_, time_so_far_, started_from_, resumed_at_, earlier_, begun_after_, counted_,
               counted_to_step_);
}

}  // namespace droptest::experiments
