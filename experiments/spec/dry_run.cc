// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/dry_run.h"

#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

#include "comm/call.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/spec/rank_calls.h"
#include "models/gpt2/gpt2_tensors.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::DryCall;
using comm::Operation;
using comm::ParallelDimension;
using comm::ParallelNumbers;
using sim::TrafficClass;

/// The first rank of a dimension with the same kind of calls, by rank.
using FirstAlike = std::vector<int>;

FirstAlike of_tensor_ranks(const RunConfig& config) {
  const int ranks = config.parallel.tensor;
  const bool is_dilated = !config.model.attention.branches.empty();
  const std::vector<std::uint64_t> rows =
      comm::even_counts(static_cast<std::uint64_t>(config.training.batch_sequences) *
                            static_cast<std::uint64_t>(config.training.sequence_tokens),
                        ranks);
  std::map<std::tuple<bool, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, int>, int> known;
  FirstAlike first;
  for (int rank = 0; rank < ranks; ++rank) {
    const models::Gpt2Part part = models::gpt2_part(config.model, ranks, rank);
    // The first rank counts the gradients that all have. Dilated heads see other tokens by their number, and a cut of
    // tokens gives each rank its own.
    const std::tuple kind(rank == 0, part.heads.count, part.hidden.count, part.vocabulary.count, part.classes.count,
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
  // All ranks along a ring are alike; ranks that exchange heads are alike if they have equally many.
  const int ulysses = attention.sequence.factors.ulysses;
  const bool deals_evenly = config.model.heads % (config.parallel.tensor * ulysses) == 0;
  FirstAlike first;
  for (int rank = 0; rank < config.parallel.sequence; ++rank) {
    const bool is_alike = are_even && attention.branches.empty();
    first.push_back(!is_alike ? rank : deals_evenly ? 0 : rank % ulysses);
  }
  return first;
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
    case Operation::kRecv:
    case Operation::kAllToAll:
      return sim::Collective::kBroadcast;
    default:
      throw CheckError("a dry run of " + std::string(comm::operation_name(operation)));
  }
}

/// A config with fewer micro-batches, and its pipeline.
struct ShortRun {
  RunConfig config;
  std::shared_ptr<const models::PipelinePlan> plan;

  ShortRun(const RunConfig& whole, int micro_batches) : config(whole) {
    config.training.accumulation = micro_batches;
    plan = pipeline_plan(config);
  }
  int micro_batches() const { return config.training.accumulation; }
};

/// Two numbers of micro-batches from which the calls of any larger number follow, or twice the run's own number. In a
/// pipeline with a schedule by name both are multiples of the ranks, which every schedule takes.
std::pair<int, int> micro_batches_to_run(const RunConfig& config) {
  const int all = config.training.accumulation;
  const int ranks = config.parallel.pipeline;
  const auto [fewer, more] = ranks == 1 ? std::pair(1, 2) : std::pair(ranks, 2 * ranks);
  if (all <= more || !config.pipeline.rows.empty()) return {all, all};
  return {fewer, more};
}

/// Adds up the calls of all ranks.
class Collectives {
 public:
  Collectives(const RunConfig& config, int fewer, int more, std::vector<std::vector<PlannedCollective>>& by_class)
      : config_(config), fewer_(fewer), more_(more), by_class_(by_class) {}

  /// `with_fewer`: the step of fewer micro-batches; unused if there is one number.
  void add(RankKind& kind, const RankCalls& calls, const std::vector<DryCall>& with_fewer) {
    NamesByCollective of_start, of_step, of_fewer, of_outer;
    CountedByCollective of_rank;
    add_calls(kind, calls.start, &Counted::once, of_rank, &of_start);
    add_calls(kind, calls.step, &Counted::times, of_rank, &of_step);
    add_calls(kind, with_fewer, &Counted::times_of_fewer, of_rank, &of_fewer);
    add_calls(kind, calls.evaluation, &Counted::evaluated, of_rank, nullptr);
    for (const RankCalls::OfFragment& of : calls.outer) {
      if (of.starts > 0) add_calls(kind, {of.call}, &Counted::once, of_rank, &of_outer, of.starts);
    }
    for (const auto& [at, counted] : of_rank) kind.shares[at].counts = counts_of(counted);
    for (const auto& [at, names] : of_step) kind.shares[at].names = of_all(names.size(), of_fewer[at].size());
    for (const auto& [at, names] : of_outer) kind.shares[at].names = names.size();
    // Parameters have the same names at the start and in a step.
    for (const auto& [at, names] : of_start) {
      kind.shares[at].names = std::max<std::uint64_t>(kind.shares[at].names, names.size());
    }
  }

  void finish() {
    for (const auto& [at, counted] : of_groups_) {
      by_class_[static_cast<std::size_t>(at.first)][at.second].counts = counts_of(counted);
    }
  }

 private:
  using At = std::pair<TrafficClass, std::size_t>;
  using NamesByCollective = std::map<At, std::set<std::tuple<std::string, int, int>>>;
  struct Counted {
    std::uint64_t once = 0, times = 0, times_of_fewer = 0, evaluated = 0;
  };
  using CountedByCollective = std::map<At, Counted>;
  using Times = std::uint64_t Counted::*;
  using MessageKey = std::tuple<const std::vector<int>*, TrafficClass, comm::ElementType, std::uint64_t>;
  using Key = std::tuple<TrafficClass, sim::Collective, comm::ElementType, std::uint64_t, std::vector<std::uint64_t>,
                         std::vector<ParallelDimension>>;

  /// The count for all micro-batches, extrapolated from the counts for two smaller numbers of them.
  std::uint64_t of_all(std::uint64_t number, std::uint64_t of_fewer) const {
    if (fewer_ == more_) return number;
    const auto further = static_cast<std::uint64_t>(config_.training.accumulation - more_);
    return number + further * (number - of_fewer) / static_cast<std::uint64_t>(more_ - fewer_);
  }

  CallCounts counts_of(const Counted& counted) const {
    return {of_all(counted.times, counted.times_of_fewer), counted.evaluated, counted.once};
  }

  /// Adds calls that are made `each` times. `names`, unless null, gets the names of the messages that the rank
  /// receives.
  void add_calls(const RankKind& kind, const std::vector<DryCall>& calls, Times times, CountedByCollective& of_rank,
                 NamesByCollective* names, std::uint64_t each = 1) {
    for (const DryCall& call : calls) {
      // The only rank of a group sends nothing.
      if (call.traffic_class == TrafficClass::kControl || call.ranks->size() == 1) continue;
      const auto note = [&](std::uint64_t elems, int peer) {
        if (elems > 0 && names != nullptr) (*names)[find(call, elems)].insert({call.name, call.layer, peer});
      };
      // Senders count messages, and loss layers of receivers remember them.
      switch (call.operation) {
        case Operation::kSend:
          count(kind, call, call.elems, each, times, of_rank);
          break;
        case Operation::kRecv:
          note(call.elems, call.peer);
          break;
        case Operation::kAllToAll:
          for (int peer = 0; peer < static_cast<int>(call.counts.size()); ++peer) {
            if (peer == call.rank) continue;
            count(kind, call, call.counts[static_cast<std::size_t>(peer)], each, times, of_rank);
            note(call.receive_counts[static_cast<std::size_t>(peer)], peer);
          }
          break;
        default:
          count(kind, call, call.elems, each, times, of_rank);
          note(call.elems, -1);
      }
    }
  }

  void count(const RankKind& kind, const DryCall& call, std::uint64_t elems, std::uint64_t each, Times times,
             CountedByCollective& of_rank) {
    const bool is_message = collective_of(call.operation) == sim::Collective::kBroadcast;
    if (elems == 0) return;
    const At at = find(call, elems);
    of_rank[at].*times += each;
    if (!is_message && call.rank != 0) return;  // the first rank of a group counts a collective for all
    const std::vector<ParallelDimension>& dimensions =
        by_class_[static_cast<std::size_t>(at.first)][at.second].dimensions;
    std::uint64_t groups = 1;
    for (const ParallelDimension dimension : comm::kParallelDimensions) {
      const bool is_of_group = std::ranges::find(dimensions, dimension) != dimensions.end();
      if (is_message || !is_of_group) groups *= static_cast<std::uint64_t>(kind.number.of(dimension));
    }
    of_groups_[at].*times += each * groups;
  }

  /// The planned collective of such a call, with these elements.
  At find(const DryCall& call, std::uint64_t elems) {
    const bool is_message = collective_of(call.operation) == sim::Collective::kBroadcast;
    // Most messages of a rank repeat those of the block or the micro-batch before.
    const MessageKey message{call.ranks.get(), call.traffic_class, call.type, elems};
    if (is_message) {
      const auto known = messages_.find(message);
      if (known != messages_.end()) return known->second;
    }
    PlannedCollective planned;
    planned.type = call.type;
    planned.dimensions = dimensions_of(config_.parallel, call);
    planned.call.traffic_class = call.traffic_class;
    planned.call.collective = collective_of(call.operation);
    planned.call.elements = floats_of(call, elems);
    if (!is_message && !call.counts.empty()) {
      for (const std::uint64_t count : call.counts) planned.call.counts.push_back(floats_of(call, count));
      planned.call.elements = std::reduce(planned.call.counts.begin(), planned.call.counts.end());
    }
    std::vector<PlannedCollective>& all = by_class_[static_cast<std::size_t>(call.traffic_class)];
    const auto [found, is_new] = known_.try_emplace(Key{call.traffic_class, planned.call.collective, call.type,
                                                        planned.call.elements, planned.call.counts, planned.dimensions},
                                                    all.size());
    const At at{call.traffic_class, found->second};
    if (is_new) {
      place(call, planned.dimensions, is_message, planned.call);
      all.push_back(std::move(planned));
    }
    if (is_message) {
      groups_.push_back(call.ranks);  // so that its address stays that of this group
      messages_[message] = at;
    }
    return at;
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
  int fewer_, more_;  ///< micro-batches of the two steps
  std::vector<std::vector<PlannedCollective>>& by_class_;
  std::map<Key, std::size_t> known_;
  CountedByCollective of_groups_;
  std::map<MessageKey, At> messages_;
  std::vector<std::shared_ptr<const std::vector<int>>> groups_;
};

/// The messages of the first block among those of a class.
std::vector<DryCall> of_first_block(const std::vector<DryCall>& calls, TrafficClass traffic_class) {
  const auto is_message = [&](const DryCall& call) { return call.traffic_class == traffic_class && call.layer >= 0; };
  const auto first = std::ranges::find_if(calls, is_message);
  if (first == calls.end()) return {};
  int layer = first->layer;
  for (const DryCall& call : calls) layer = is_message(call) ? std::min(layer, call.layer) : layer;
  std::vector<DryCall> of_block;
  std::ranges::copy_if(calls, std::back_inserter(of_block),
                       [&](const DryCall& call) { return is_message(call) && call.layer == layer; });
  return of_block;
}

}  // namespace

DryRun::DryRun(const RunConfig& config)
    : of_tensor_(of_tensor_ranks(config)),
      of_sequence_(of_sequence_ranks(config)),
      collectives_(sim::kAllTrafficClasses.size()) {
  if (config.parallel.world_size() == 1) return;
  const auto [fewer, more] = micro_batches_to_run(config);
  const ShortRun longer(config, more);
  std::optional<ShortRun> shorter;
  if (fewer < more) shorter.emplace(config, fewer);
  Collectives collectives(config, fewer, more, collectives_);
  bool has_outer_steps = false;
  const auto count = [](const FirstAlike& of, int rank) { return static_cast<int>(std::ranges::count(of, rank)); };
  for (int pipeline = 0; pipeline < config.parallel.pipeline; ++pipeline) {
    for (int sequence = 0; sequence < config.parallel.sequence; ++sequence) {
      for (int tensor = 0; tensor < config.parallel.tensor; ++tensor) {
        RankKind kind;
        kind.first = {0, sequence, pipeline, tensor};
        kind.number = {config.parallel.data, count(of_sequence_, sequence), 1, count(of_tensor_, tensor)};
        if (kind.number.sequence == 0 || kind.number.tensor == 0) continue;
        const RankCalls calls = calls_of_rank(longer.config, longer.plan, kind.first);
        has_outer_steps = has_outer_steps || !calls.outer.empty();
        collectives.add(
            kind, calls,
            shorter ? calls_of_rank(shorter->config, shorter->plan, kind.first).step : std::vector<DryCall>());
        if (config.parallel.sequence > 1) {
          kind.attention_forward = of_first_block(calls.evaluation, TrafficClass::kSequenceForward);
          kind.attention_backward = of_first_block(calls.step, TrafficClass::kSequenceBackward);
        }
        kind.micro_batches = longer.micro_batches();
        kinds_.push_back(std::move(kind));
      }
    }
  }
  collectives.finish();
  for (const TrafficClass traffic_class : sim::kAllTrafficClasses) {
    const bool is_outer = traffic_class == TrafficClass::kOuter && has_outer_steps;
    if (is_outer || !of(traffic_class).empty()) classes_.push_back(traffic_class);
  }
}

std::optional<TrafficClass> DryRun::scattered_class() const {
  return class_of_sums_with(sim::Collective::kReduceScatter);
}

std::optional<TrafficClass> DryRun::exchanged_class() const { return class_of_sums_with(sim::Collective::kBroadcast); }

std::optional<TrafficClass> DryRun::class_of_sums_with(sim::Collective only) const {
  for (const TrafficClass traffic_class : classes_) {
    if (of(traffic_class).empty()) continue;
    const bool has_others = std::ranges::any_of(
        of(traffic_class), [only](const PlannedCollective& planned) { return planned.call.collective != only; });
    const sim::TrafficClassEntry& entry = sim::traffic_class_entry(traffic_class);
    if (entry.is_summed && !entry.repeats && !has_others) return traffic_class;
  }
  return std::nullopt;
}

const RankKind& DryRun::kind_of(const ParallelNumbers& at) const {
  const ParallelNumbers first{0, of_sequence_[static_cast<std::size_t>(at.sequence)], at.pipeline,
                              of_tensor_[static_cast<std::size_t>(at.tensor)]};
  const auto found = std::ranges::find(kinds_, first, &RankKind::first);
  DROPTEST_CHECK(found != kinds_.end(), "a dry run of one rank has no kinds of ranks");
  return *found;
}

const DryRun& LazyDryRun::get() const {
  if (!run_) run_.emplace(config_);
  return *run_;
}

std::string dry_run_key(const nlohmann::json& spec, const RunConfig& config) {
  nlohmann::json key = {{"vocabulary", config.model.vocabulary},
                        {"classes", config.model.classes},
                        {"within", config.model.attention.within}};
  for (const char* section : {"model", "parallel", "memory", "device", "outer", "training"}) {
    if (spec.contains(section)) key[section] = spec[section];
  }
  for (const char* of_rate : {"learning_rate", "final_learning_rate"}) key["training"].erase(of_rate);
  for (const char* of_files : {"weights", "pretrained", "sha256", "vocabulary_sha256"}) key["model"].erase(of_files);
  for (const TrafficClass of : sim::kAllTrafficClasses) {
    const auto& network = config.network.of(of);
    key["skips"].push_back(network && network->gather.rule().source == comm::FillRule::Source::kSubstitute);
  }
  return key.dump();
}

std::shared_ptr<const DryRun> shared_dry_run(const nlohmann::json& spec, const RunConfig& config) {
  constexpr std::size_t kMost = 256;
  static thread_local std::map<std::string, std::shared_ptr<const DryRun>> runs;
  const std::string key = dry_run_key(spec, config);
  const auto found = runs.find(key);
  if (found != runs.end()) return found->second;
  if (runs.size() == kMost) runs.clear();
  return runs[key] = std::make_shared<const DryRun>(config);
}

MessageElems message_elems(const DryCall& call) {
  if (call.operation == Operation::kSend) return {{call.elems}, {}};
  if (call.operation == Operation::kRecv) return {{}, {call.elems}};
  MessageElems elems;
  if (call.operation != Operation::kAllToAll) return elems;
  for (std::size_t peer = 0; peer < call.counts.size(); ++peer) {
    if (peer == static_cast<std::size_t>(call.rank)) continue;
    elems.sent.push_back(call.counts[peer]);
    elems.received.push_back(call.receive_counts[peer]);
  }
  return elems;
}

std::vector<TrafficClass> classes_with_network(const DryRun& run, const RunConfig& config) {
  std::vector<TrafficClass> classes;
  for (const TrafficClass traffic_class : sim::kAllTrafficClasses) {
    const bool is_of_embedding = traffic_class == TrafficClass::kEmbeddingGradient && shares_tied_embedding(config);
    if (is_of_embedding || std::ranges::find(run.classes(), traffic_class) != run.classes().end()) {
      classes.push_back(traffic_class);
    }
  }
  return classes;
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

}  // namespace droptest::experiments
