// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/dry_run.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "comm/call.h"
#include "experiments/spec/model_options.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/spec/rank_groups.h"
#include "models/gpt2/gpt2.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/ops/planner_ops.h"
#include "models/outer_step.h"
#include "models/training_step.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::DryCall;
using comm::Operation;
using comm::ParallelDimension;
using comm::ParallelNumbers;
using sim::TrafficClass;

/// For each rank of a dimension the first one with calls that are alike.
using FirstAlike = std::vector<int>;

FirstAlike of_tensor_ranks(const RunConfig& config) {
  const int ranks = config.parallel.tensor;
  const bool is_dilated = !config.model.attention.branches.empty();
  const std::vector<std::uint64_t> rows =
      comm::even_counts(static_cast<std::uint64_t>(config.training.batch_sequences) *
                            static_cast<std::uint64_t>(config.training.sequence_tokens),
                        ranks);
  std::map<std::tuple<bool, std::uint64_t, std::uint64_t, std::uint64_t, int>, int> known;
  FirstAlike first;
  for (int rank = 0; rank < ranks; ++rank) {
    const models::Gpt2Part part = models::gpt2_part(config.model, ranks, rank);
    // The first rank counts the gradients that all have. Dilated heads see other tokens by their number, and a cut of
    // tokens gives each rank its own.
    const std::tuple kind(rank == 0, part.heads.count, part.vocabulary.count,
                          config.tensor_sequence ? rows[static_cast<std::size_t>(rank)] : 0, is_dilated ? rank : 0);
    first.push_back(known.try_emplace(kind, rank).first->second);
  }
  return first;
}

FirstAlike of_sequence_ranks(const RunConfig& config) {
  const models::AttentionOptions& attention = config.model.attention;
  const models::SequenceParts parts = attention.sequence.parts(config.training.sequence_tokens);
  const auto lengths = parts.lengths();
  const bool are_even = std::ranges::all_of(lengths, [&](std::int64_t length) { return length == lengths.front(); });
  // Along a ring all ranks are alike, and those that exchange heads where they have as many.
  const int ulysses = attention.sequence.factors.ulysses;
  const bool deals_evenly = config.model.heads % (config.parallel.tensor * ulysses) == 0;
  FirstAlike first;
  for (int rank = 0; rank < config.parallel.sequence; ++rank) {
    const bool is_alike = are_even && attention.branches.empty();
    first.push_back(!is_alike ? rank : deals_evenly ? 0 : rank % ulysses);
  }
  return first;
}

/// The element types of a device and the sizes of the host, which any machine knows. Of calls, only the number of
/// control messages depends on sizes.
class FormOfTypes final : public models::OpsForm {
 public:
  FormOfTypes(std::unique_ptr<models::OpsForm> host, const models::OpsTypes& types)
      : host_(std::move(host)), types_(types) {}
  models::OpsTypes types() const override { return types_; }
  std::uint64_t attention_statistics_elems(const models::AttentionShape& shape) const override {
    return host_->attention_statistics_elems(shape);
  }
  std::uint64_t attention_forward_scratch_elems(const models::AttentionShape& shape) const override {
    return host_->attention_forward_scratch_elems(shape);
  }
  std::uint64_t attention_backward_scratch_elems(const models::AttentionShape& shape) const override {
    return host_->attention_backward_scratch_elems(shape);
  }
  std::uint64_t norm_scratch_elems(std::int64_t rows, std::int64_t width) const override {
    return host_->norm_scratch_elems(rows, width);
  }
  bool gelu_needs_room() const override { return host_->gelu_needs_room(); }
  bool gelu_from_projection() const override { return host_->gelu_from_projection(); }
  bool gelu_sums_bias() const override { return host_->gelu_sums_bias(); }
  models::LogitChunks logit_chunks(std::int64_t rows, std::int64_t columns, std::int64_t largest_part) const override {
    return host_->logit_chunks(rows, columns, largest_part);
  }
  bool fuses_cross_entropy() const override { return host_->fuses_cross_entropy(); }
  bool drops_probabilities() const override { return true; }

 private:
  std::unique_ptr<models::OpsForm> host_;
  models::OpsTypes types_;
};

std::unique_ptr<models::OpsForm> form_of_calls(const RunConfig& config) {
  const models::ModelPrecision& precision = config.training.precision;
  const int ranks = config.parallel.tensor;
  models::HostOpsOptions options;
  if (config.device != Device::kCuda) options.precision = precision;
  auto host = models::host_ops_form(options, ranks);
  if (config.device != Device::kCuda) return host;
  models::OpsTypes types = host->types();
  types.activations = types.operands = models::element_type(precision.compute);
  types.messages = ranks == 1 ? types.activations : models::element_type(precision.message);
  return std::make_unique<FormOfTypes>(std::move(host), types);
}

/// Micro-batches of a dry step. Where one pass follows the other, those between the first and the last are alike.
int dry_micro_batches(const RunConfig& config) {
  constexpr int kDifferent = 3;
  return config.parallel.pipeline > 1 ? config.training.accumulation
                                      : std::min(config.training.accumulation, kDifferent);
}

/// The calls of one rank.
DryRank run_dry(const RunConfig& config, const models::OpsForm& form, const ParallelNumbers& at,
                const ParallelNumbers& alike) {
  DryRank rank;
  rank.at = at;
  rank.alike = alike;
  std::vector<DryCall> calls;
  comm::DryCommunicator world(config.parallel.world_size(), config.parallel.rank(at), calls);
  RankGroups groups(config, world);
  models::Gpt2 model(model_of(config), models::make_planner_ops(form, groups.tensor()), config.training.optimizer,
                     slot_options(config), groups.model_ranks());
  models::TrainingStep step(model, config.training.gradient_clip, config.training.gradient_norm,
                            config.training.loss_scale);
  calls.clear();
  if (config.sharding.shards_state()) model.gather_values();
  model.spread_embedding();
  rank.start = std::exchange(calls, {});
  const models::BatchShape shape{config.training.batch_sequences, config.training.sequence_tokens};
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.rows()), 0);
  // A classification head has one target in each sequence.
  std::vector<std::int32_t> targets(tokens.size(), config.model.classifies() ? models::kIgnoredTarget : 0);
  for (std::int64_t s = 0; s < shape.batch; ++s) targets[static_cast<std::size_t>((s + 1) * shape.length - 1)] = 0;
  const models::MicroBatch batch{tokens, targets, shape};
  const auto take = [&](int micro_batches) {
    step.take(std::vector<models::MicroBatch>(static_cast<std::size_t>(micro_batches), batch), 0);
    model.spread_embedding();
    return std::exchange(calls, {});
  };
  rank.micro_batches = dry_micro_batches(config);
  rank.step = take(rank.micro_batches);
  if (rank.micro_batches < config.training.accumulation) rank.shorter_step = take(rank.micro_batches - 1);
  model.evaluate(batch);
  rank.evaluation = std::exchange(calls, {});
  return rank;
}

/// The dimensions in which the ranks of a call's group differ.
std::vector<ParallelDimension> dimensions_of(const comm::ParallelLayout& layout, const DryCall& call) {
  const ParallelNumbers first = layout.coordinates(call.ranks->front());
  const ParallelNumbers last = layout.coordinates(call.ranks->back());
  std::vector<ParallelDimension> dimensions;
  for (const ParallelDimension dimension : comm::kParallelDimensions) {
    if (first.of(dimension) != last.of(dimension)) dimensions.push_back(dimension);
  }
  return dimensions;
}

std::uint64_t floats_of(const DryCall& call, std::uint64_t elems) {
  return (elems * comm::element_bytes(call.type) + sizeof(float) - 1) / sizeof(float);
}

sim::Collective collective_of(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
    case Operation::kAllReduceWith:
      return sim::Collective::kAllReduce;
    case Operation::kReduceScatter:
    case Operation::kReduceScatterWith:
      return sim::Collective::kReduceScatter;
    case Operation::kAllGather:
      return sim::Collective::kAllGather;
    case Operation::kBroadcast:
    case Operation::kSend:
    case Operation::kAllToAll:
      return sim::Collective::kBroadcast;
    default:
      throw CheckError("a dry run of " + std::string(comm::operation_name(operation)));
  }
}

/// Adds up the calls of all ranks.
class Collectives {
 public:
  Collectives(const RunConfig& config, std::vector<std::vector<PlannedCollective>>& by_class)
      : config_(config), by_class_(by_class) {}

  void add(const DryRank& rank) {
    // Each micro-batch beyond those of the dry step adds what the last one but one did.
    const auto more = static_cast<std::uint64_t>(config_.training.accumulation - dry_micro_batches(config_));
    add_calls(rank, rank.start, &PlannedCollective::otherwise, 1);
    add_calls(rank, rank.step, &PlannedCollective::times, 1 + more);
    add_calls(rank, rank.shorter_step, &PlannedCollective::times, 0 - more);
    add_calls(rank, rank.evaluation, &PlannedCollective::evaluated, 1);
    for (const auto& [key, names] : names_) {
      PlannedCollective& planned = by_class_[static_cast<std::size_t>(key.first)][key.second];
      planned.names = std::max<std::uint64_t>(planned.names, names.size());
    }
    names_.clear();
  }

 private:
  using Times = std::uint64_t PlannedCollective::*;
  using Key = std::tuple<TrafficClass, sim::Collective, std::uint64_t, std::vector<std::uint64_t>,
                         std::vector<ParallelDimension>>;

  void add_calls(const DryRank& rank, const std::vector<DryCall>& calls, Times times, std::uint64_t weight) {
    for (const DryCall& call : calls) {
      // A rank alone sends nothing.
      if (call.traffic_class == TrafficClass::kControl || call.ranks->size() == 1) continue;
      switch (call.operation) {
        case Operation::kRecv:  // its sender has it
          break;
        case Operation::kAllToAll:
          for (std::size_t peer = 0; peer < call.counts.size(); ++peer) {
            if (peer == static_cast<std::size_t>(call.rank)) continue;
            add_call(rank, call, call.counts[peer], static_cast<int>(peer), times, weight);
          }
          break;
        default:
          add_call(rank, call, call.elems, call.peer, times, weight);
      }
    }
  }

  void add_call(const DryRank& rank, const DryCall& call, std::uint64_t elems, int peer, Times times,
                std::uint64_t weight) {
    if (elems == 0) return;
    const sim::Collective collective = collective_of(call.operation);
    const bool is_message = collective == sim::Collective::kBroadcast;
    const std::vector<ParallelDimension> dimensions = dimensions_of(config_.parallel, call);
    std::vector<std::uint64_t> counts;
    std::uint64_t floats = floats_of(call, elems);
    if (!is_message) {
      for (const std::uint64_t count : call.counts) counts.push_back(floats_of(call, count));
      if (!counts.empty()) floats = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    }
    std::vector<PlannedCollective>& all = by_class_[static_cast<std::size_t>(call.traffic_class)];
    const auto [found, is_new] =
        known_.try_emplace(Key{call.traffic_class, collective, floats, counts, dimensions}, all.size());
    if (is_new) {
      PlannedCollective planned;
      planned.call.traffic_class = call.traffic_class;
      planned.call.collective = collective;
      planned.call.elements = floats;
      planned.call.counts = std::move(counts);
      place(call, dimensions, is_message, planned.call);
      planned.dimensions = dimensions;
      all.push_back(std::move(planned));
    }
    PlannedCollective& planned = all[found->second];
    if (times == &PlannedCollective::times) {
      names_[{call.traffic_class, found->second}].insert({call.name, call.layer, is_message ? peer : -1});
    }
    // The first rank of a group counts a collective for all, and each source its messages.
    if (!is_message && call.rank != 0) return;
    std::uint64_t groups = weight;
    for (const ParallelDimension dimension : comm::kParallelDimensions) {
      const bool is_of_group = std::ranges::find(dimensions, dimension) != dimensions.end();
      if (is_message || !is_of_group) groups *= static_cast<std::uint64_t>(rank.alike.of(dimension));
    }
    planned.*times += groups;
  }

  void place(const DryCall& call, const std::vector<ParallelDimension>& dimensions, bool is_message,
             comm::FateSimulation& simulation) const {
    simulation.ranks = is_message ? 2 : static_cast<int>(call.ranks->size());
    if (dimensions.size() != 1) {
      simulation.world_ranks = *call.ranks;
      if (is_message) simulation.world_ranks.resize(2);
      return;
    }
    const ParallelNumbers first = config_.parallel.coordinates(call.ranks->front());
    const ParallelNumbers second = config_.parallel.coordinates((*call.ranks)[1]);
    simulation.rank_stride = config_.parallel.stride(dimensions.front());
    if (!is_message) simulation.rank_stride *= second.of(dimensions.front()) - first.of(dimensions.front());
  }

  const RunConfig& config_;
  std::vector<std::vector<PlannedCollective>>& by_class_;
  std::map<Key, std::size_t> known_;
  std::map<std::pair<TrafficClass, std::size_t>, std::set<std::tuple<std::string, int, int>>> names_;  ///< of a rank
};

/// The means of outer steps in the whole run.
std::vector<PlannedCollective> of_outer_steps(const RunConfig& config) {
  comm::FateSimulation call;
  call.traffic_class = TrafficClass::kOuter;
  call.ranks = config.parallel.data;
  call.rank_stride = config.parallel.stride(ParallelDimension::kData);
  std::vector<PlannedCollective> collectives;
  for (int part = 0; part < config.parallel.tensor * config.parallel.pipeline; ++part) {
    std::vector<std::uint64_t> sizes;
    for (const models::Gpt2Tensor& tensor :
         tensors_of_rank(config, part / config.parallel.tensor, part % config.parallel.tensor)) {
      if (!tensor.is_copy) sizes.push_back(tensor.slice.local_elems());
    }
    for (const models::OuterFragment& fragment : models::outer_fragments(config.outer, sizes)) {
      PlannedCollective mean{call};
      mean.call.elements = fragment.elems;
      mean.dimensions = {ParallelDimension::kData};
      mean.names = 1;
      for (std::uint64_t step = 1; step <= config.training.steps; ++step) {
        if (fragment.starts_at(step, config.outer.every_steps)) ++mean.otherwise;
      }
      if (mean.otherwise > 0) collectives.push_back(std::move(mean));
    }
  }
  return collectives;
}

}  // namespace

DryRun::DryRun(const RunConfig& config)
    : of_tensor_(of_tensor_ranks(config)),
      of_sequence_(of_sequence_ranks(config)),
      collectives_(sim::kAllTrafficClasses.size()) {
  if (config.parallel.world_size() == 1) return;
  constexpr std::int64_t kMostRows = std::int64_t{1} << 28;
  const std::int64_t rows =
      std::int64_t{config.training.batch_sequences} * std::int64_t{config.training.sequence_tokens};
  if (rows > kMostRows) {
    throw ConfigError("/training: got " + std::to_string(rows) + " tokens in a micro-batch, want at most " +
                      std::to_string(kMostRows));
  }
  const std::unique_ptr<models::OpsForm> form = form_of_calls(config);
  Collectives collectives(config, collectives_);
  const auto count = [](const FirstAlike& of, int rank) { return static_cast<int>(std::ranges::count(of, rank)); };
  for (int pipeline = 0; pipeline < config.parallel.pipeline; ++pipeline) {
    for (int sequence = 0; sequence < config.parallel.sequence; ++sequence) {
      for (int tensor = 0; tensor < config.parallel.tensor; ++tensor) {
        const ParallelNumbers alike{config.parallel.data, count(of_sequence_, sequence), 1, count(of_tensor_, tensor)};
        if (alike.sequence == 0 || alike.tensor == 0) continue;
        ranks_.push_back(run_dry(config, *form, {0, sequence, pipeline, tensor}, alike));
        collectives.add(ranks_.back());
      }
    }
  }
  if (config.outer.is_on() && config.parallel.data > 1) {
    collectives_[static_cast<std::size_t>(TrafficClass::kOuter)] = of_outer_steps(config);
  }
}

const DryRank& DryRun::of_rank(const ParallelNumbers& at) const {
  const ParallelNumbers first{0, of_sequence_[static_cast<std::size_t>(at.sequence)], at.pipeline,
                              of_tensor_[static_cast<std::size_t>(at.tensor)]};
  const auto found = std::ranges::find(ranks_, first, &DryRank::at);
  DROPTEST_CHECK(found != ranks_.end(), "the calls of a rank alone");
  return *found;
}

const DryRun& DryRunWhenAsked::get() const {
  if (!run_) run_.emplace(config_);
  return *run_;
}

Sent sent_by(const DryCall& call) {
  Sent sent;
  const auto add = [&](std::uint64_t elems, Sent::Numbers& to) {
    if (elems > 0) to.push_back(elems);
  };
  switch (call.operation) {
    case Operation::kSend:
      add(call.elems, sent.to_others);
      break;
    case Operation::kRecv:
      add(call.elems, sent.from_others);
      break;
    case Operation::kAllToAll:
      for (std::size_t peer = 0; peer < call.counts.size(); ++peer) {
        if (peer == static_cast<std::size_t>(call.rank)) continue;
        add(call.counts[peer], sent.to_others);
        add(call.receive_counts[peer], sent.from_others);
      }
      break;
    default:
      break;
  }
  return sent;
}

std::vector<DryCall> of_first_block(const std::vector<DryCall>& calls, TrafficClass traffic_class) {
  std::vector<DryCall> of_class;
  std::ranges::copy_if(calls, std::back_inserter(of_class),
                       [&](const DryCall& call) { return call.traffic_class == traffic_class; });
  if (of_class.empty()) return of_class;
  const int first = std::ranges::min(of_class, {}, &DryCall::layer).layer;
  std::erase_if(of_class, [first](const DryCall& call) { return call.layer != first; });
  return of_class;
}

bool updates_tied_embedding(const RunConfig& config) {
  const std::vector<models::Gpt2Tensor> tensors = models::gpt2_tensors(config.model, 1, 0);
  return !std::ranges::find(tensors, models::kTiedTensor, &models::Gpt2Tensor::name)->is_frozen();
}

bool shares_tied_embedding(const RunConfig& config) {
  const auto plan = pipeline_plan(config);
  return plan != nullptr && !config.model.classifies() &&
         plan->rank_of(0) != plan->rank_of(static_cast<int>(plan->stages.size()) - 1);
}

std::optional<TrafficClass> scattered_class(const RunConfig& config) {
  if (!config.sharding.shards_state()) return std::nullopt;
  return TrafficClass::kDpGradient;
}

std::optional<TrafficClass> exchanged_class(const RunConfig& config) {
  if (config.parallel.sequence == 1) return std::nullopt;
  return TrafficClass::kSequenceBackward;
}

}  // namespace droptest::experiments
