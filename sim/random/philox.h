// SPDX-License-Identifier: Apache-2.0
// Random bits as a pure function of (seed, purpose, place): Philox4x32-10 over disjoint counter fields.
#pragma once

#include <array>
#include <cstdint>

#include "sim/loss/link.h"

namespace droptest::sim {

/// The decision of a draw. Fixed values, never renumbered or reused: two decisions must not share a stream.
/// Values below 16 draw along links (link_counter), those of dropout in the counters of models/kernels/dropout.h, and
/// all others through PhiloxEngine.
enum class Purpose : std::uint16_t {
  kLossTransition = 1,      ///< the state of a loss process; for Bernoulli the fate itself
  kLossEmission = 2,        ///< whether a packet is lost in its state
  kDigestWord = 3,          ///< no draw: mixes 64 fates into a link's digest
  kDigestRange = 4,         ///< no draw: mixes a range of packets into a link's digest
  kTraceStart = 5,          ///< where in a trace a link begins
  kTimedState = 6,          ///< the state of a link at a time
  kWeights = 16,            ///< initial weights
  kBatches = 17,            ///< which text a training step reads
  kSyntheticInput = 18,     ///< inputs of `droptest collective`
  kSampleOrder = 19,        ///< the order of the samples of an epoch
  kBootstrap = 20,          ///< resamples of examples, for intervals of a classifier's quality
  kHadamardSigns = 21,      ///< signs of the randomised Hadamard transform
  kGeneration = 22,         ///< tokens of `droptest generate`
  kComputeStraggler = 32,   ///< how much longer than usual a rank computes in a step
  kTransferStraggler = 33,  ///< how much longer than usual a hop takes
  kStageFailure = 34,       ///< whether a stage of a pipeline loses its weights before a step
  kOverflowFlag = 35,       ///< whether a rank does not hear of the overflows of a step
  kRounding = 36,           ///< whether a compressed value is rounded up
  kFactorStart = 37,        ///< the first factors of a low-rank compression
  kAttentionDropout = 48,   ///< which probabilities of attention a training step sets to zero
  kResidualDropout = 49,    ///< which elements of sublayer outputs a training step sets to zero
  kEmbeddingDropout = 50,   ///< which elements of the sum of the embeddings a training step sets to zero
};

/// The experiment's 64-bit seed is the key; see docs/fates.md for the counter's fields.
using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxBlock = std::array<std::uint32_t, 4>;

/// Philox4x32-10. Source: Salmon et al., SC 2011; Random123.
PhiloxBlock philox(std::uint64_t key, const PhiloxCounter& counter);

/// The counter of packets 4 * packet_block to 4 * packet_block + 3 of a link; blocks are counted modulo 2^62.
PhiloxCounter link_counter(const Link& link, Purpose purpose, std::uint64_t packet_block);

/// Draws that belong to no link: `stream` tells apart the users of one purpose (a tensor, a trial).
/// A UniformRandomBitGenerator for Boost.Random. The i-th value is a pure function of (seed, purpose, stream, i) for i
/// < 2^50; from there on the values repeat.
class PhiloxEngine {
 public:
  using result_type = std::uint32_t;
  /// Throws: CheckError for a purpose that draws along links.
  PhiloxEngine(std::uint64_t seed, Purpose purpose, std::uint64_t stream);

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return 0xffffffffU; }
  result_type operator()();
  /// Goes to the value of that index.
  void seek(std::uint64_t index);

 private:
  std::uint64_t seed_;
  Purpose purpose_;
  std::uint64_t stream_;
  std::uint64_t index_ = 0;
  PhiloxBlock block_{};
  bool block_valid_ = false;
};

}  // namespace droptest::sim
