// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/replica_absences.h"

#include <algorithm>
#include <set>
#include <span>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {
namespace {

using comm::ParallelDimension;

bool has_rank(const std::vector<int>& ranks, int rank) { return std::ranges::binary_search(ranks, rank); }

/// One message between two replicas for each value of the visited objects.
class StateMessages final : public models::StateVisitor {
 public:
  enum class Direction : std::uint8_t { kSend, kReceive };
  StateMessages(comm::Communicator& group, int peer, Direction direction)
      : group_(group), peer_(peer), direction_(direction) {}

  void number(std::string_view /*name*/, std::uint64_t& value) override { pass(comm::Tensor(std::span(&value, 1))); }
  void tensor(std::string_view /*name*/, const comm::Tensor& tensor, std::span<const models::TensorPiece> /*pieces*/,
              models::Sharding /*sharding*/) override {
    pass(tensor);
  }

 private:
  void pass(const comm::Tensor& data) {
    const comm::Message message{sim::TrafficClass::kControl, "state of a replica"};
    if (direction_ == Direction::kSend) {
      group_.send(data, peer_, message);
    } else {
      group_.recv(data, peer_, message);
    }
  }

  comm::Communicator& group_;
  int peer_;
  Direction direction_;
};

}  // namespace

std::vector<ReplicaAbsenceRecord> absences_until(const RunConfig& config, std::uint64_t last) {
  std::vector<ReplicaAbsenceRecord> records;
  if (!config.failures) return records;
  for (const ReplicaAbsence& absence : config.failures->replicas) {
    if (absence.first_without() > last) continue;
    const std::uint64_t end = std::min(absence.until.value_or(last + 1), last + 1);
    records.push_back({absence.data_rank, absence.from, end - absence.first_without(), absence.reload_step});
  }
  return records;
}

std::uint64_t steps_with_fewer_replicas(const RunConfig& config, std::uint64_t first, std::uint64_t last) {
  if (config.full_data) return config.parallel.data < *config.full_data ? last + 1 - first : 0;
  std::uint64_t steps = 0;
  for (std::uint64_t step = first; config.failures && step <= last; ++step) {
    steps += absent_replicas(config.failures->replicas, step).empty() ? 0 : 1;
  }
  return steps;
}

ReplicaAbsences::ReplicaAbsences(const RunConfig& config, comm::Communicator& network, comm::ParallelGroups& all)
    : config_(config), all_(all) {
  const int own = all.coordinates().data;
  Part& whole = *parts_.emplace_back(std::make_unique<Part>());
  whole.attendance = {{}, config.parallel.data, own, true, &all};
  if (!config.failures) return;
  std::set<std::uint64_t> changes;
  for (const ReplicaAbsence& absence : config.failures->replicas) {
    changes.insert(absence.from);
    if (absence.until) changes.insert(*absence.until);
  }
  for (const std::uint64_t step : changes) {
    const std::vector<int> absent = absent_replicas(config.failures->replicas, step);
    const auto is_known = [&absent](const auto& part) { return part->attendance.absent == absent; };
    if (std::ranges::any_of(parts_, is_known)) continue;
    Part& part = *parts_.emplace_back(std::make_unique<Part>());
    Attendance& attendance = part.attendance;
    attendance.absent = absent;
    attendance.replicas = config.parallel.data - static_cast<int>(absent.size());
    attendance.index =
        own - static_cast<int>(std::ranges::count_if(absent, [own](int replica) { return replica < own; }));
    attendance.takes_part = !has_rank(absent, own);
    part.world = network.split(attendance.takes_part ? 0 : -1, network.rank());
    if (part.world == nullptr) continue;
    // The ranks stay in the order of the layout if some coordinates of one dimension are left out.
    comm::ParallelLayout layout = config.parallel;
    layout.data = attendance.replicas;
    part.groups = std::make_unique<comm::ParallelGroups>(layout, *part.world);
    attendance.groups = part.groups.get();
  }
}

const Attendance& ReplicaAbsences::at(std::uint64_t step) const {
  if (!config_.failures) return parts_.front()->attendance;
  const std::vector<int> absent = absent_replicas(config_.failures->replicas, step);
  const auto is_wanted = [&absent](const auto& part) { return part->attendance.absent == absent; };
  return (*std::ranges::find_if(parts_, is_wanted))->attendance;
}

void ReplicaAbsences::change(const Attendance& from, const Attendance& to, TrainingModel& model) {
  const int own = all_.coordinates().data;
  comm::Communicator& replicas = *all_.group(ParallelDimension::kData);
  for (const int back : from.absent) {
    if (has_rank(to.absent, back) || (own != 0 && own != back)) continue;
    StateMessages messages(replicas, own == 0 ? back : 0,
                           own == 0 ? StateMessages::Direction::kSend : StateMessages::Direction::kReceive);
    model.visit_state(messages);
  }
  adopt(to, model);
}

void ReplicaAbsences::adopt(const Attendance& attendance, TrainingModel& model) const {
  if (!attendance.takes_part) return;
  const comm::ParallelLayout& layout = attendance.groups->layout();
  models::ModelRanks ranks;
  ranks.data.group = attendance.groups->gradient_group();
  ranks.all = &attendance.groups->world();
  ranks.data_stride = layout.stride(ParallelDimension::kData);
  ranks.sequence.stride = layout.stride(ParallelDimension::kSequence);
  ranks.pipeline.stride = layout.stride(ParallelDimension::kPipeline);
  model.set_replicas(ranks);
}

}  // namespace droptest::experiments
