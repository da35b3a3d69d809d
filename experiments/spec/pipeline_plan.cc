// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/pipeline_plan.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "models/pipeline/schedule_csv.h"
#include "models/pipeline/schedule_timing.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

std::string list_text(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

std::vector<int> layers_of_stages(const RunConfig& config, int stages) {
  const int layers = config.model.layers;
  const auto count = static_cast<std::size_t>(stages);
  std::vector<int> even(count, layers / stages);
  for (int s = 0; s < layers % stages; ++s) ++even[static_cast<std::size_t>(s)];
  const std::vector<int>& given = config.pipeline.layers_per_stage;
  if (stages > layers) {
    throw ConfigError("/parallel/pipeline: got " + std::to_string(stages) + " stages for " + std::to_string(layers) +
                      " layers, want at most one for each layer");
  }
  if (given.empty()) {
    if (layers % stages == 0) return even;
    throw ConfigError("/parallel/layers_per_stage: absent, but " + std::to_string(layers) +
                      " layers are no multiple of " + std::to_string(stages) + " stages; want for example " +
                      list_text(even));
  }
  if (given.size() != count || std::accumulate(given.begin(), given.end(), 0) != layers) {
    throw ConfigError("/parallel/layers_per_stage: got " + list_text(given) + ", want " + std::to_string(stages) +
                      " numbers with the sum " + std::to_string(layers) + ", for example " + list_text(even));
  }
  return given;
}

}  // namespace

models::PipelineSchedule pipeline_schedule(const RunConfig& config) {
  const PipelineConfig& pipeline = config.pipeline;
  const int ranks = config.parallel.pipeline;
  const int micro_batches = config.training.accumulation;
  try {
    if (pipeline.rows.empty()) {
      return models::make_schedule(pipeline.schedule, ranks, pipeline.chunks, micro_batches);
    }
    std::string text;
    for (const std::string& row : pipeline.rows) text += row + "\n";
    models::PipelineSchedule schedule = models::schedule_from_csv(text, "rows");
    models::validate(schedule);
    if (static_cast<int>(schedule.ranks.size()) != ranks || schedule.micro_batches() != micro_batches) {
      throw ConfigError("got a schedule of " + std::to_string(schedule.ranks.size()) + " ranks and " +
                        std::to_string(schedule.micro_batches()) + " micro-batches, want " + std::to_string(ranks) +
                        " (/parallel/pipeline) and " + std::to_string(micro_batches) + " (/training/accumulation)");
    }
    return schedule;
  } catch (const ConfigError& error) {
    throw ConfigError(std::string("/parallel/schedule: ") + error.what());
  }
}

std::shared_ptr<const models::PipelinePlan> pipeline_plan(const RunConfig& config) {
  if (config.parallel.pipeline == 1) return nullptr;
  auto plan = std::make_shared<models::PipelinePlan>();
  const models::PipelineSchedule schedule = pipeline_schedule(config);
  int first = 0;
  for (const int layers : layers_of_stages(config, schedule.stages())) {
    plan->stages.push_back({first, first + layers, config.model.layers});
    first += layers;
  }
  const auto skips = [&](sim::TrafficClass of) {
    const auto& network = config.network.of(of);
    return network && network->gather.rule().source == comm::FillRule::Source::kSubstitute;
  };
  plan->program =
      models::make_program(schedule, {skips(sim::TrafficClass::kPpActivation), skips(sim::TrafficClass::kPpGradient)});
  return plan;
}

std::vector<models::Gpt2Tensor> tensors_of_rank(const RunConfig& config, int pipeline, int tensor) {
  const auto plan = pipeline_plan(config);
  if (plan == nullptr) return models::gpt2_tensors(config.model, config.parallel.tensor, tensor);
  std::vector<models::StageRange> ranges;
  for (const int stage : plan->stages_of(pipeline)) ranges.push_back(plan->stages[static_cast<std::size_t>(stage)]);
  return models::stage_tensors(config.model, ranges, config.parallel.tensor, tensor);
}

double compute_share(const RunConfig& config, const models::StageRange& stage, models::Action::Kind kind) {
  const double block = 12.0 * config.model.width;
  const double head = config.model.outputs();
  const double of_model = block * config.model.layers + head;
  const double of_stage = block * stage.count() + (stage.has_head() ? head : 0);
  return of_stage / of_model * config.parallel.pipeline / config.training.accumulation *
         models::ActionCosts().of(kind) / 3;
}

}  // namespace droptest::experiments
