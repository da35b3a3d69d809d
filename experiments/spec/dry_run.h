// SPDX-License-Identifier: Apache-2.0
// The collectives and messages of a run, found by running its training step without data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/dry_communicator.h"
#include "comm/lab/fate_simulation.h"
#include "comm/parallel_layout.h"
#include "experiments/spec/run_config.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {

/// The numbers of calls in a step, in an evaluation and in a run.
struct CallCounts {
  std::uint64_t times = 0;      ///< calls in a training step
  std::uint64_t evaluated = 0;  ///< calls in an evaluation in which each replica has one batch
  std::uint64_t once = 0;       ///< calls in a whole run that bring starting weights or belong to outer steps
};

/// Collectives and messages of one class that are alike: a message, and each part of an all-to-all, is a broadcast to
/// one rank. Elements count as float32: two of 16 bits are one.
struct PlannedCollective {
  comm::FateSimulation call;                             ///< the call; its network, seed and time are not set
  comm::ElementType type = comm::ElementType::kFloat32;  ///< the type in which elements travel
  CallCounts counts;                                     ///< calls of all groups together
  std::vector<comm::ParallelDimension> dimensions{};     ///< dimensions in which the ranks of a group differ

  bool is_message() const { return call.collective == sim::Collective::kBroadcast; }
  /// Whether the collective is over all ranks that average their gradients, as are reductions of gradients and gathers
  /// of parameters. Its size does not depend on the number of tokens.
  bool is_of_gradient_ranks() const {
    return !is_message() && std::ranges::any_of(dimensions, [](comm::ParallelDimension dimension) {
      return dimension == comm::ParallelDimension::kData || dimension == comm::ParallelDimension::kSequence;
    });
  }
};

/// Ranks that make calls of the same names and sizes; only the other ranks of their groups differ.
struct RankKind {
  comm::ParallelNumbers first;               ///< the coordinates of one of the ranks
  comm::ParallelNumbers number{1, 1, 1, 1};  ///< the number of coordinates of such ranks, by dimension
  /// Messages between sequence ranks in the first block: of one forward pass, and of `micro_batches` backward passes.
  std::vector<comm::DryCall> attention_forward, attention_backward;
  int micro_batches = 1;
  /// One such rank's part of a planned collective.
  struct Share {
    CallCounts counts;        ///< collectives in which the rank takes part, and messages that it sends
    std::uint64_t names = 0;  ///< different names of these collectives, and of (message that a rank receives, sender)
  };
  /// The parts by (class, index in DryRun::of()).
  std::map<std::pair<sim::TrafficClass, std::size_t>, Share> shares;
};

/// The calls of ranks of each kind (calls_of_rank()), added up over all ranks. The messages of checkpoints, absences
/// and measurements are not part of the result. Only few micro-batches are run: each further one adds the same calls.
/// Reads the members model, parallel, tensor_sequence, sharding, pipeline, memory, device, outer and training,
/// and which classes have the fill `skip`. Throws: ConfigError of calls_of_rank().
class DryRun {
 public:
  explicit DryRun(const RunConfig& config);

  /// Empty for a world of one rank.
  const std::vector<RankKind>& kinds() const { return kinds_; }
  const RankKind& kind_of(const comm::ParallelNumbers& at) const;
  /// The collectives and messages of a class in the order of a step, the starting weights first; empty for a class that
  /// the run does not send.
  const std::vector<PlannedCollective>& of(sim::TrafficClass traffic_class) const& {
    return collectives_[static_cast<std::size_t>(traffic_class)];
  }
  const std::vector<PlannedCollective>& of(sim::TrafficClass traffic_class) const&& = delete;
  /// The classes of the packets that such runs send, in the order of their values; `outer` also if the run ends before
  /// its first outer step, although of() is empty then.
  const std::vector<sim::TrafficClass>& classes() const& { return classes_; }
  const std::vector<sim::TrafficClass>& classes() const&& = delete;
  /// The class of sums that the run has only as reduce-scatters: gradients that only their owners get. Classes that
  /// repeat another one do not count.
  std::optional<sim::TrafficClass> scattered_class() const;
  /// The class of sums that the run has only as messages between two ranks.
  std::optional<sim::TrafficClass> exchanged_class() const;

 private:
  std::optional<sim::TrafficClass> class_of_sums_with(sim::Collective only) const;

  std::vector<int> of_tensor_, of_sequence_;  ///< the first coordinate of the same kind, by coordinate
  std::vector<RankKind> kinds_;
  std::vector<sim::TrafficClass> classes_;
  std::vector<std::vector<PlannedCollective>> collectives_;  ///< the result of of(), by class
};

/// Makes the dry run when its result is needed for the first time.
class LazyDryRun {
 public:
  /// The config is borrowed.
  explicit LazyDryRun(const RunConfig& config) : config_(config) {}
  const DryRun& get() const;

 private:
  const RunConfig& config_;
  mutable std::optional<DryRun> run_;
};

/// The values that a dry run reads, as text: runs of other rates, seeds, learning rates and weights have the same key,
/// unless their steps follow from their data (`epochs`), whose number a spec without its files lacks. `spec`: resolved.
std::string dry_run_key(const nlohmann::json& spec, const RunConfig& config);
/// The dry run of a config, made once in this thread for all that have its key.
std::shared_ptr<const DryRun> shared_dry_run(const nlohmann::json& spec, const RunConfig& config);

/// The numbers of elements of the messages that a call sends to other ranks and receives from them. The parts of an
/// all-to-all are messages, too.
struct MessageElems {
  std::vector<std::uint64_t> sent, received;
};
MessageElems message_elems(const comm::DryCall& call);

/// The classes with a network in a resolved spec: the classes of the packets that the run sends, and the class of a
/// tied embedding on two ranks. A frozen embedding sends nothing, but recorded specs of such runs name its network.
std::vector<sim::TrafficClass> classes_with_network(const DryRun& run, const RunConfig& config);

/// Whether training changes the token embedding.
bool updates_tied_embedding(const RunConfig& config);
/// Whether the embedding and the head, which have one tensor, are on two ranks.
bool shares_tied_embedding(const RunConfig& config);

}  // namespace droptest::experiments
