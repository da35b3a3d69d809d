// SPDX-License-Identifier: Apache-2.0
// The values of one call as their receivers decode them.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/lossy/compression/block_codec.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/statistics/sample_sums.h"
#include "comm/tensor.h"
#include "sim/loss/link.h"
#include "sim/random/philox.h"

namespace droptest::comm {

/// Encodes values and decodes the message on the rank that sends it. A packet that arrives is decoded without any other
/// packet, so decoded values can travel in place of the bytes. Works in host memory; tensors on a device are copied
/// there and back, which waits for their stream.
class ValueCoder {
 public:
  /// `seed` is the experiment's.
  ValueCoder(const Compression& compression, std::uint64_t seed) : codec_(compression), seed_(seed) {}

  /// Takes the random draws of the next call: for the `contributions` elements that this rank sends to owners of parts,
  /// then for the `results` elements. Both links are from this rank to every destination. Thread safety: only on the
  /// thread that uses the ledger.
  void plan(FlowLedger& ledger, const sim::Link& contribution_link, std::uint64_t contributions,
            const sim::Link& result_link, std::uint64_t results);

  /// Codes values of the next elements of the half in place, and adds their energies to the errors of the call.
  void code(sim::Half half, Tensor values);

  /// |decoded - exact|^2 and |exact|^2 of all values since the plan.
  const CodingErrors& errors() const { return errors_; }

 private:
  sim::PhiloxEngine& draws_of(sim::Half half) { return half == sim::Half::kReduce ? contributions_ : results_; }

  BlockCodec codec_;
  std::uint64_t seed_;
  sim::PhiloxEngine contributions_{0, sim::Purpose::kRounding, 0};
  sim::PhiloxEngine results_{0, sim::Purpose::kRounding, 0};
  CodingErrors errors_;
};

}  // namespace droptest::comm
