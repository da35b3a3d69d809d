// SPDX-License-Identifier: Apache-2.0
// Two passes. The first pass takes the sources one by one, and draws the lost packets of their links in the order of
// the trials and hops; it keeps one bit per packet. The second pass walks over the hops of a trial round by round, with
// a count for each rank and piece of the elements: pieces are so small that each lies in one packet of every hop.
#include "comm/lab/fate_simulation.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "comm/communicator.h"
#include "comm/lab/time_simulation.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/statistics/statistics_collection.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr std::uint64_t kMostCounts = std::uint64_t{1} << 32;
constexpr std::array kHalves = {sim::Half::kReduce, sim::Half::kGather};

// Bits that are read in the order in which they were written.
class BitQueue {
 public:
  void write(const sim::PacketMask* lost, std::uint64_t packets) {
    for (std::uint64_t p = 0; p < packets; ++p) {
      if ((written_ & 63) == 0) words_.push_back(0);
      if (lost != nullptr && lost->lost(p)) words_.back() |= std::uint64_t{1} << (written_ & 63);
      ++written_;
    }
  }
  // The begin of the next message; moves forward by its packets.
  std::uint64_t take(std::uint64_t packets) {
    const std::uint64_t begin = read_;
    read_ += packets;
    DROPTEST_CHECK(read_ <= written_, "more packets are read than were drawn");
    return begin;
  }
  bool at(std::uint64_t bit) const { return (words_[bit >> 6] >> (bit & 63)) & 1U; }

 private:
  std::vector<std::uint64_t> words_;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;
};

class Simulation {
 public:
  explicit Simulation(const FateSimulation& what)
      : what_(what),
        path_(path_in(what.network, what.elements)),
        ranks_(what.ranks),
        counts_of_ranks_(counts_of(what)),
        call_(shape_of(what, counts_of_ranks_)),
        messages_(what.network, path_, ranks_,
                  rank_of_lowest(what.ranks, [&what](int rank) { return what.world_rank(rank); })) {
    DROPTEST_CHECK(std::reduce(counts_of_ranks_.begin(), counts_of_ranks_.end()) == what.elements,
                   "parts that are not those of the collective");
    network_.seed = what.seed;
    network_.of(what.traffic_class) = what.network;
  }

  SimulatedFates run() {
    result_.survival_reduce.assign(what_.trials, 1);
    result_.survival_gather.assign(what_.trials, 1);
    result_.statistics.traffic_class = what_.traffic_class;
    if (ranks_ == 1) return std::move(result_);
    if (follows()) {
      cut_.emplace(messages_.cut(call_));
      cut_into_pieces();
    }
    const bool is_timed = what_.time != nullptr && (keeps_time(network_) || sends_again(network_));
    const bool is_late = what_.time != nullptr && what_.time->deadline_seconds;
    if (reduces_all() && (is_timed || is_late)) note_times();
    is_lossy_.assign(what_.trials, false);
    for (const sim::Half half : kHalves) draw(half);
    result_.statistics.collectives = what_.trials;
    result_.statistics.untouched = static_cast<std::uint64_t>(std::count(is_lossy_.begin(), is_lossy_.end(), false));
    if (follows()) follow();
    return std::move(result_);
  }

 private:
  // Whether the values of a lost packet are also lost on later hops. If not, the lost elements give the survival.
  bool travels_on() const { return path_.route == Route::kManyHops; }
  bool reduces_all() const { return what_.collective == sim::Collective::kAllReduce; }
  bool follows() const { return travels_on() && reduces_all(); }
  bool shares(sim::Half half) const {
    return half == sim::Half::kGather && what_.network.consistency == Consistency::kShared;
  }

  sim::Packetizer packets(std::uint64_t elements) const {
    return what_.network.packets(ElementType::kFloat32, elements);
  }
  sim::ElementRange elements(const sim::Hop& hop) const { return cut_->elements(hop); }

  void draw(sim::Half half) {
    auto& lost_bits = lost_bits_[static_cast<std::size_t>(half)];
    lost_bits.resize(follows() ? static_cast<std::size_t>(ranks_) : 0);
    std::vector<std::uint64_t> lost_elements(what_.trials, 0);
    LossCounts& counts = result_.statistics.halves[static_cast<std::size_t>(half)];
    sim::PacketMask lost;
    for (int source = 0; source < ranks_; ++source) {
      FlowLedger ledger(network_);
      for (std::uint64_t trial = 0; trial < what_.trials; ++trial) {
        CallFates fates;
        fates.step = trial;
        fates.delivery = delivery_of({what_.traffic_class, what_.message_name}, what_.network, trial);
        if (!times_.empty()) fates.times = &times_[trial];
        messages_.visit_sent_by(call_, source, half, [&](const PathMessage& message) {
          const int destination = message.to_all ? sim::Link::kEveryDestination : message.destination;
          const sim::Link link{what_.traffic_class, half, static_cast<std::uint16_t>(what_.world_rank(source)),
                               static_cast<std::uint16_t>(what_.world_rank(destination))};
          const sim::Packetizer& cut = message.packets;
          const bool any_lost = ledger.draw_message(fates, link, cut, Tally::kCounted, lost);
          if (follows()) lost_bits[static_cast<std::size_t>(source)].write(any_lost ? &lost : nullptr, cut.packets());
          if (!any_lost) return;
          is_lossy_[trial] = true;
          lost_elements[trial] += lost.lost_count() * cut.elems_per_packet();
          if (lost.lost(cut.packets() - 1)) {
            lost_elements[trial] -= cut.elems_per_packet() - cut.elements(cut.packets() - 1).size();
          }
        });
      }
      for (const auto& [key, flow] : ledger.flows()) {
        counts.add(flow.loss_counts());
        result_.statistics.digest =
            with_link_digest(result_.statistics.digest, with_link_digest(0, flow.tally->digest()));
      }
    }
    if (!reduces_all() || (path_.sub_calls != nullptr && half == sim::Half::kGather)) return;
    std::vector<double>& survival = half == sim::Half::kReduce ? result_.survival_reduce : result_.survival_gather;
    const double pairs = static_cast<double>(what_.elements) * ranks_;
    for (std::uint64_t trial = 0; trial < what_.trials; ++trial) {
      survival[trial] = 1 - static_cast<double>(lost_elements[trial]) * losers(half) / pairs;
    }
  }

  // Notes the departure and the late packets of each message. If a link has at most one message in a collective, or two
  // of equal size, only messages with late packets are kept: there are as many links as pairs of ranks.
  void note_times() {
    times_.resize(what_.trials);
    const bool keeps_all = travels_on() || keeps_time(network_) || sends_again(network_);
    simulate_time(what_, *what_.time, [&](std::uint64_t trial, const Transmission& message) {
      if (!keeps_all && message.in_time.value_or(message.cost.packets) == message.cost.packets) return;
      note_time(message, times_[trial]);
    });
  }

  // Ranks that miss an element of a lost packet: all ranks for a packet to every destination, except that an owner
  // under `own` keeps its value. A lost contribution to an aggregation point is one contribution that all results miss.
  double losers(sim::Half half) const {
    if (!shares(half)) return 1;
    return path_.schedule != nullptr && what_.network.gather.rule().keeps_own() ? ranks_ - 1 : ranks_;
  }

  // The ends of the pieces.
  void cut_into_pieces() {
    std::vector<int> seen(static_cast<std::size_t>(cut_->hops.parts()), -1);  // end of a hop by its first part
    for (int round = 0; round < cut_->hops.rounds(); ++round) {
      for (int rank = 0; rank < ranks_; ++rank) {
        hops_.clear();
        cut_->hops.sends(round, rank, hops_);
        for (const sim::Hop& hop : hops_) {
          if (seen[static_cast<std::size_t>(hop.first_part)] == hop.end_part) continue;
          seen[static_cast<std::size_t>(hop.first_part)] = hop.end_part;
          const sim::ElementRange range = elements(hop);
          const std::uint64_t step = packets(range.size()).elems_per_packet();
          for (std::uint64_t begin = range.begin; begin < range.end; begin += step) piece_begins_.push_back(begin);
        }
      }
    }
    for (const std::uint64_t begin : cut_->begins) piece_begins_.push_back(begin);
    std::sort(piece_begins_.begin(), piece_begins_.end());
    piece_begins_.erase(std::unique(piece_begins_.begin(), piece_begins_.end()), piece_begins_.end());
    pieces_ = piece_begins_.size() - 1;
    for (const std::uint64_t begin : cut_->begins) {
      first_pieces_.push_back(static_cast<std::uint64_t>(
          std::lower_bound(piece_begins_.begin(), piece_begins_.end(), begin) - piece_begins_.begin()));
    }
    if (pieces_ * static_cast<std::uint64_t>(ranks_) > kMostCounts) {
      throw ConfigError("collective: got " + std::to_string(ranks_) + " ranks with " + std::to_string(what_.elements) +
                        " elements, whose counts need more than 8 GiB; want fewer elements or a larger payload");
    }
  }

  // Calls add(source's counts, destination's counts, lost) for each piece of each hop of the rounds [begin, end).
  template <class Take>
  void walk(int begin, int end, const Take& take) {
    for (int round = begin; round < end; ++round) {
      for (int source = 0; source < ranks_; ++source) {
        hops_.clear();
        cut_->hops.sends(round, source, hops_);
        for (const sim::Hop& hop : hops_) {
          const sim::ElementRange range = elements(hop);
          if (range.size() == 0) continue;
          const sim::Packetizer cut = packets(range.size());
          BitQueue& bits = lost_bits_[static_cast<std::size_t>(hop.half)][static_cast<std::size_t>(source)];
          const std::uint64_t first_bit = bits.take(cut.packets());
          const std::uint64_t last = first_pieces_[static_cast<std::size_t>(hop.end_part)];
          for (std::uint64_t piece = first_pieces_[static_cast<std::size_t>(hop.first_part)]; piece < last; ++piece) {
            const bool lost = bits.at(first_bit + cut.packet_of(piece_begins_[piece] - range.begin));
            take(counts_[static_cast<std::size_t>(hop.source) * pieces_ + piece],
                 counts_[static_cast<std::size_t>(hop.destination) * pieces_ + piece], lost);
          }
        }
      }
    }
  }

  void follow() {
    for (std::uint64_t trial = 0; trial < what_.trials; ++trial) {
      counts_.assign(static_cast<std::size_t>(ranks_) * pieces_, 1);
      walk(0, cut_->hops.reduce_rounds(), [](std::uint16_t from, std::uint16_t& to, bool lost) {
        if (!lost) to = static_cast<std::uint16_t>(to + from);
      });
      result_.survival_reduce[trial] = share([this](int rank, int part) { return cut_->hops.owner(part) == rank; });
      for (int part = 0; part < cut_->hops.parts(); ++part) start_values(part);
      walk(cut_->hops.reduce_rounds(), cut_->hops.rounds(),
           [](std::uint16_t from, std::uint16_t& to, bool lost) { to = lost ? 0 : from; });
      result_.survival_gather[trial] = share([](int /*rank*/, int /*part*/) { return true; });
    }
  }

  // A value is 1 at a rank that has the owner's sum, else 0.
  void start_values(int part) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::uint16_t has = cut_->hops.owner(part) == rank ? 1 : 0;
      const auto row = counts_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * pieces_);
      std::fill(row + static_cast<std::ptrdiff_t>(first_pieces_[static_cast<std::size_t>(part)]),
                row + static_cast<std::ptrdiff_t>(first_pieces_[static_cast<std::size_t>(part) + 1]), has);
    }
  }

  // Sum of counts x elements over the chosen (rank, part) pairs, over ranks x elements.
  template <class Chosen>
  double share(const Chosen& chosen) const {
    double sum = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      for (int part = 0; part < cut_->hops.parts(); ++part) {
        if (!chosen(rank, part)) continue;
        for (std::uint64_t piece = first_pieces_[static_cast<std::size_t>(part)];
             piece < first_pieces_[static_cast<std::size_t>(part) + 1]; ++piece) {
          sum += static_cast<double>(counts_[static_cast<std::size_t>(rank) * pieces_ + piece]) *
                 static_cast<double>(piece_begins_[piece + 1] - piece_begins_[piece]);
        }
      }
    }
    return sum / (static_cast<double>(what_.elements) * ranks_);
  }

  const FateSimulation& what_;
  const PathEntry& path_;
  int ranks_;
  std::vector<std::uint64_t> counts_of_ranks_;
  CallShape call_;
  PathMessages messages_;
  std::optional<PathMessages::Cut> cut_;  // cut of the collective; absent if values are not followed
  Network network_;
  SimulatedFates result_;
  std::vector<SendTimes> times_;  // times by trial; empty if neither a process nor a deadline needs them
  std::vector<bool> is_lossy_;    // whether packets can be lost, by trial
  std::array<std::vector<BitQueue>, 2> lost_bits_;  // lost bits by half and source
  std::vector<std::uint64_t> piece_begins_;         // first element of each piece, and the number of elements
  std::vector<std::uint64_t> first_pieces_;         // first piece of each part, and the number of pieces
  std::uint64_t pieces_ = 0;
  std::vector<std::uint16_t> counts_;  // counts by rank and piece
  std::vector<sim::Hop> hops_;
};

}  // namespace

std::vector<std::uint64_t> counts_of(const FateSimulation& simulation) {
  return simulation.counts.empty() ? even_counts(simulation.elements, simulation.ranks) : simulation.counts;
}

CallShape shape_of(const FateSimulation& simulation, std::span<const std::uint64_t> counts) {
  return {operation_of(simulation.collective), ElementType::kFloat32, simulation.elements, counts};
}

std::uint64_t first_packets(const FateSimulation& simulation) {
  if (simulation.ranks == 1) return 0;
  const std::vector<std::uint64_t> counts = counts_of(simulation);
  const CallShape shape = shape_of(simulation, counts);
  PathMessages messages(simulation.network, path_in(simulation.network, simulation.elements), simulation.ranks);
  std::uint64_t packets = 0;
  for (const sim::Half half : kHalves) {
    const sim::LinkRecovery* const recovery = simulation.network.of(half).recovery.get();
    for (int source = 0; source < simulation.ranks; ++source) {
      messages.visit_sent_by(shape, source, half, [&](const PathMessage& message) {
        const std::uint64_t data = message.packets.packets();
        packets += recovery == nullptr ? data : recovery->first_packets(data);
      });
    }
  }
  return packets;
}

SimulatedFates simulate_fates(const FateSimulation& simulation) {
  validate(simulation.network);
  return Simulation(simulation).run();
}

}  // namespace droptest::comm
