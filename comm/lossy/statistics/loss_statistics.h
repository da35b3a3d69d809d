// SPDX-License-Identifier: Apache-2.0
// Losses, repairs and errors by traffic class and half, merged over ranks for the record.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "comm/lossy/statistics/sample_sums.h"
#include "sim/loss/link.h"

namespace droptest::comm {

/// Whether ranks count the losses of their links. Without counts, a link needs a third of the memory.
enum class Counting : std::uint8_t { kOff, kOn };

/// Whether statistics have an entry for each link.
enum class LinkDetail : std::uint8_t { kOmit, kInclude };

/// Counts of the fates of packets, message by message.
struct PacketCounts {
  std::uint64_t bytes = 0;          ///< bytes of first transmissions, data and parity; losses count both, too
  std::uint64_t content_bytes = 0;  ///< bytes of the tensor elements in the messages, before compression
  std::uint64_t lost_packets = 0;
  std::uint64_t lost_bytes = 0;
  /// The effect of the recovery; without a recovery, all lost packets are residual.
  std::uint64_t repaired_packets = 0;  ///< data packets lost at first, then received or restored
  std::uint64_t residual_packets = 0;  ///< data packets still missing
  std::uint64_t residual_bytes = 0;
  std::uint64_t resent_packets = 0;  ///< repetitions: each packet as often as it was sent again
  std::uint64_t resend_rounds = 0;   ///< rounds of repetitions, summed over messages
  /// Messages with losses that depend on time. Messages of both halves at one time meet the same state, so the counts
  /// of the halves are not independent.
  std::uint64_t timed_messages = 0;
};

/// Counts of one flow or of many flows added up. Each link is counted on exactly one rank.
struct LossCounts : PacketCounts {
  std::uint64_t messages = 0;
  std::uint64_t packets = 0;                      ///< packets of first transmissions
  double expected_lost = 0;                       ///< sum over links of packets x loss rate
  double expected_lost_variance = 0;              ///< sum over links of the variance of their lost packets
  std::map<std::uint64_t, std::uint64_t> bursts;  ///< number of bursts that ended or are open, by length in packets
  std::vector<std::uint64_t> gaps;                ///< gaps of 2^i to 2^(i + 1) - 1 packets between two losses, by i
  /// Number of stretches, by length in packets. A stretch is a longest run of counted packets with consecutive indices;
  /// bursts and gaps end with it.
  std::map<std::uint64_t, std::uint64_t> stretches;

  // NaN without packets: no rate was measured.
  double configured_rate() const;  ///< expected_lost / packets
  double realised_rate() const;    ///< lost_packets / packets
  /// (lost - expected) / standard deviation. If the variance is 0: 0 if nothing deviates, else infinity with the sign
  /// of the deviation. NaN if the variance is not known.
  double z() const;
  /// Mean burst over the histogram; 0 without bursts.
  double mean_burst_packets() const;
  void add(const LossCounts& other);
};

struct LinkStatistics {
  sim::Link link;
  LossCounts counts;
  /// Digest of all fates of the link so far, on the rank that counts it. The other end may draw only the fates of every
  /// 16th message: verify_fates() compares those.
  std::uint64_t digest = 0;
};

/// The messages of one class in one transformer block. Samples are of sampled steps, summed over ranks and calls; the
/// counts of steps include all steps.
struct LayerStatistics {
  int layer = -1;  ///< -1: messages of no block
  SampleSums samples;
  std::uint64_t steps = 0;            ///< steps with traffic of the layer
  std::uint64_t untouched_steps = 0;  ///< steps with traffic, but no packet of the layer stayed missing on any rank

  double untouched_share() const;  ///< NaN without steps
};

struct ClassStatistics {
  sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
  std::array<LossCounts, 2> halves;  ///< the counts of each half, indexed by sim::Half
  std::uint64_t collectives = 0;     ///< calls, counted once for their group; a message from send to recv is one
  std::uint64_t untouched = 0;       ///< calls in which no packet stayed missing on any rank
  std::uint64_t sampled_calls = 0;   ///< calls of sampled steps
  /// Sums over ranks and calls of sampled steps: |result - exact|^2, |exact|^2, |result|^2, <result, exact>.
  double error_energy = 0;
  double exact_energy = 0;
  double result_energy = 0;
  double inner_product = 0;
  CodingErrors coding;  ///< errors of compressed values before any loss, on sampled steps
  EndErrors ends;       ///< differences of the two ends of EF21, on sampled steps
  /// Differences between ranks, on sampled steps, of results that are equal on all ranks without loss: the largest
  /// difference between two ranks, and the root mean square, over elements and ranks, of the difference to the mean
  /// over ranks. NaN: not measured.
  double divergence_max = std::numeric_limits<double>::quiet_NaN();
  double divergence_rms = std::numeric_limits<double>::quiet_NaN();
  std::uint64_t digest = 0;             ///< digest of all links' digests
  std::vector<LayerStatistics> layers;  ///< all layers in ascending order
  std::vector<LinkStatistics> links;

  /// The sum of both halves. It has no z if both halves have packets and a loss process depends on time: the halves
  /// then meet the same states, so their losses are correlated.
  LossCounts total() const;
  double nmse() const;             ///< error_energy / exact_energy, as in SampleSums; NaN without samples
  double cosine() const;           ///< NaN without samples
  double untouched_share() const;  ///< NaN without calls
};

/// Samples of one class since the last read. Lines of metrics.jsonl have differences of ClassStatistics instead.
struct ClassSample {
  sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
  std::uint64_t calls = 0;
  double nmse = 0;
  double cosine = 1;
  double divergence_max = 0;  ///< NaN: not measured
  double divergence_rms = 0;  ///< NaN: not measured
};

}  // namespace droptest::comm
