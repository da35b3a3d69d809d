// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/evaluation.h"

#include <algorithm>
#include <span>

#include "models/gpt2/batch.h"

namespace droptest::experiments {
namespace {

constexpr comm::Message kAbout{sim::TrafficClass::kControl, "evaluation_losses", -1};

/// The sums or maxima over ranks. Null: only this rank.
void reduce_over(comm::Communicator* ranks, comm::ReduceOp op, std::vector<double>& values) {
  if (ranks != nullptr && !values.empty()) {
    ranks->all_reduce(comm::Tensor(std::span<double>(values)), op, kAbout);
  }
}

/// The number of hits among pairs of (largest logit, the target's logit).
double count_hits(const std::vector<double>& margins) {
  double hits = 0;
  for (std::size_t i = 0; i < margins.size(); i += 2) hits += margins[i] == margins[i + 1] ? 1 : 0;
  return hits;
}

/// The values of each replica, one after the other. Null: only this rank.
std::vector<double> gather_over(comm::Communicator* replicas, const std::vector<double>& own) {
  if (replicas == nullptr || own.empty()) return own;
  const auto ranks = static_cast<std::uint64_t>(replicas->world_size());
  std::vector<double> all(own.size() * ranks);
  replicas->all_gather(comm::ConstTensor(std::span<const double>(own)), comm::Tensor(std::span<double>(all)),
                       std::vector<std::uint64_t>(ranks, own.size()), kAbout);
  return all;
}

}  // namespace

Evaluated evaluate(TrainingModel& model, const EvaluationData& data, const comm::ParallelGroups* groups,
                   models::EvaluationDetail detail, const std::function<void()>& evaluated) {
  using enum models::EvaluationDetail;
  const auto group = [groups](comm::ParallelDimension dimension) {
    return groups == nullptr ? nullptr : groups->group(dimension);
  };
  comm::Communicator* const replicas = group(comm::ParallelDimension::kData);
  const std::uint64_t count = data.batches();
  const std::uint64_t ranks = replicas == nullptr ? 1 : static_cast<std::uint64_t>(replicas->world_size());
  const std::uint64_t own = replicas == nullptr ? 0 : static_cast<std::uint64_t>(replicas->rank());
  const std::uint64_t turns = (count + ranks - 1) / ranks;
  std::vector<double> sums;   // the loss of each turn's batch
  std::vector<double> found;  // the logits of each turn's batch, or its number of hits
  for (std::uint64_t turn = 0; turn < turns; ++turn) {
    // All replicas take part in every turn, since one may need the others' parameters.
    const std::uint64_t index = turn * ranks + own;
    const Batch batch = data.batch(std::min(index, count - 1));
    const double loss = model.evaluate(batch, detail);
    evaluated();
    sums.push_back(index < count ? loss * static_cast<double>(models::count_targets(batch.targets)) : 0);
    std::vector<double> of_batch = model.detail();
    if (detail == kMargins) {
      reduce_over(group(comm::ParallelDimension::kTensor), comm::ReduceOp::kMax, of_batch);
      of_batch = {index < count ? count_hits(of_batch) : 0};
    }
    found.insert(found.end(), of_batch.begin(), of_batch.end());
  }
  if (detail == kLogits) reduce_over(group(comm::ParallelDimension::kTensor), comm::ReduceOp::kSum, found);
  reduce_over(group(comm::ParallelDimension::kSequence), comm::ReduceOp::kSum, found);
  if (const auto plan = model.pipeline()) {
    comm::Communicator& pipeline = *group(comm::ParallelDimension::kPipeline);
    const int head = plan->rank_of(static_cast<int>(plan->stages.size()) - 1);
    pipeline.broadcast(comm::Tensor(std::span<double>(sums)), head, kAbout);
    if (!found.empty()) pipeline.broadcast(comm::Tensor(std::span<double>(found)), head, kAbout);
  }
  const std::vector<double> of_all = gather_over(replicas, sums);
  const std::vector<double> found_by_all = gather_over(replicas, found);
  const std::size_t of_batch = found.size() / turns;
  Evaluated result;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t place = i % ranks * turns + i / ranks;
    result.mean_loss += of_all[place];
    const std::span<const double> of_place = std::span(found_by_all).subspan(place * of_batch, of_batch);
    if (detail == kLogits) result.logits.insert(result.logits.end(), of_place.begin(), of_place.end());
    if (detail == kMargins) result.hits += static_cast<std::uint64_t>(of_place.front());
  }
  result.mean_loss /= static_cast<double>(data.count_targets());
  // Padding follows the last example.
  if (detail == kLogits) {
    result.logits.resize(data.count_targets() * static_cast<std::size_t>(model.config().outputs()));
  }
  return result;
}

}  // namespace droptest::experiments
