// SPDX-License-Identifier: Apache-2.0
// Compares the backward pass over lost queries, keys, values and outputs with finite differences of the lossy forward
// pass.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "models/attention/dilated_attention.h"
#include "models/attention/distributed_attention.h"
#include "sim/loss/bernoulli.h"
#include "tests/models/attention/local_dense_attention.h"
#include "tests/models/attention/sequence_cases.h"

namespace droptest::models::lost_gradient_test {
namespace {

using comm::Fill;
using comm::LostGradient;

/// Queries, keys and values.
using Inputs = std::array<WholeTensor, 3>;

/// The results of a rank's attention for its own tokens.
using Attention = std::function<LocalResults<double>(comm::Communicator& group, const Inputs& inputs,
                                                     const WholeTensor& grad_output)>;

struct Case {
  std::string name;
  int ranks;
  SequenceParts parts;
  Attention attention;
};

comm::LossyOptions options_of(double rate, Fill fill, std::optional<LostGradient> gradient) {
  comm::ClassNetwork network;
  network.payload_bytes = 24;
  network.gather.loss = std::make_shared<sim::Bernoulli>(rate);
  network.gather.fill = fill;
  network.lost_gradient = gradient;
  comm::LossyOptions options;
  options.network.seed = 11;
  options.network.of(sim::TrafficClass::kSequenceForward) = network;
  return options;
}

const HeadShape kShape{2, 11, 4, 3};

/// Runs `f(this rank's view of a whole tensor, a view of results)`.
template <class F>
LocalResults<double> on_own_tokens(const SequenceParts& parts, int rank, const Inputs& inputs,
                                   const WholeTensor& grad_output, const F& f) {
  HeadShape local = kShape;
  local.tokens = parts.length_of(rank);
  std::array<Doubles, 4> own;
  for (std::size_t i = 0; i < 4; ++i) {
    own[i] = (i < 3 ? inputs[i] : grad_output)
                 .part<double>(parts.positions(rank, 1), 0, kShape.heads, TokenLayout::kBatchFirst);
  }
  LocalResults<double> results;
  for (Doubles* elems : {&results.output, &results.grad_queries, &results.grad_keys, &results.grad_values}) {
    elems->assign(local.elems(), 0);
  }
  f(local, own, results);
  return results;
}

template <class Kind>
Attention attention_of(const SequenceParts& parts, const std::function<Kind(comm::Communicator&)>& make) {
  return [parts, make](comm::Communicator& group, const Inputs& inputs, const WholeTensor& grad_output) {
    return on_own_tokens(parts, group.rank(), inputs, grad_output, [&](const auto& local, const auto& own, auto& to) {
      const auto in = [&](std::size_t i) {
        return view_of("input", std::span<const double>(own[i]), local, TokenLayout::kBatchFirst);
      };
      const auto out = [&](Doubles& elems) {
        return view_of("result", std::span(elems), local, TokenLayout::kBatchFirst);
      };
      const AttentionMask mask(Causality::kCausal);
      const SequencePass pass{parts, mask, 3};
      Kind attention = make(group);
      typename Kind::Saved saved;
      attention.forward(pass, in(0), in(1), in(2), out(to.output), saved, 1);
      const AttentionGradients<double> gradients{out(to.grad_queries), out(to.grad_keys), out(to.grad_values)};
      if constexpr (std::is_same_v<Kind, DilatedAttention<double>>) {
        attention.backward(pass, out(to.output), in(3), saved, gradients, 1);
      } else {
        attention.backward(pass, in(3), saved, gradients, 1);
      }
    });
  };
}

Attention distributed(const SequenceParts& parts) {
  return [parts](comm::Communicator& group, const Inputs& inputs, const WholeTensor& grad_output) {
    return on_own_tokens(parts, group.rank(), inputs, grad_output, [&](const auto& local, const auto& own, auto& to) {
      DenseLocalAttention dense;
      DistributedAttention<double> attention(group, dense, TokenLayout::kBatchFirst, kShape.heads, kShape.width);
      attention.set_lengths(local.batch, local.tokens);
      const std::array<std::int64_t, 4> extents = {local.batch, local.tokens, local.heads, local.width};
      attention.forward({own[0], extents}, {own[1], extents}, {own[2], extents},
                        attention.combine(AttentionMask(Causality::kCausal)), to.output);
      attention.backward({own[3], extents}, to.grad_queries, to.grad_keys, to.grad_values);
    });
  };
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (const SequenceFactors& factors : factors_of(ranks)) {
      for (const SequenceParts& parts : {SequenceParts::even(kShape.tokens, ranks),
                                         SequenceParts::zigzag(kShape.tokens, factors.ring, factors.ulysses)}) {
        all.push_back({text(factors), ranks, parts,
                       attention_of<SequenceAttention<double>>(parts, [factors](comm::Communicator& group) {
                         return SequenceAttention<double>(&group, factors, kShape.heads);
                       })});
      }
    }
    const SequenceParts parts = SequenceParts::even(kShape.tokens, ranks);
    for (const BranchGradient gradient : {BranchGradient::kExact, BranchGradient::kStopped}) {
      DilatedOptions options;
      options.branches = {{4, 1}, {11, 2}};
      if (gradient == BranchGradient::kStopped) options.branches = {{11, 2}};  // exact with one branch
      options.gradient = gradient;
      all.push_back(
          {"dilated", ranks, parts, attention_of<DilatedAttention<double>>(parts, [options](comm::Communicator& group) {
             return DilatedAttention<double>(&group, options, kShape.heads);
           })});
    }
    all.push_back({"distributed", ranks, parts, distributed(parts)});
  }
  return all;
}

double product(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

struct Pass {
  double loss = 0;                    ///< the sum of outputs times grad_output
  std::array<double, 3> slopes = {};  ///< slope of the loss along each direction
};

/// A call with other inputs comes first, so that stale fills have values.
Pass pass_of(const Case& one, const comm::LossyOptions& options, const Inputs& inputs, const Inputs& directions) {
  const WholeTensor grad_output(kShape, 4);
  const Inputs earlier = {WholeTensor(kShape, 21), WholeTensor(kShape, 22), WholeTensor(kShape, 23)};
  Pass pass;
  std::mutex mutex;
  comm::run_ranks(one.ranks, kTimeout, [&](comm::Communicator& inner) {
    comm::LossyCommunicator group(inner, options);
    one.attention(group, earlier, grad_output);
    const LocalResults<double> got = one.attention(group, inputs, grad_output);
    const auto own = [&](const WholeTensor& tensor) {
      return tensor.part<double>(one.parts.positions(group.rank(), 1), 0, kShape.heads, TokenLayout::kBatchFirst);
    };
    const std::lock_guard lock(mutex);
    pass.loss += product(got.output, own(grad_output));
    pass.slopes[0] += product(got.grad_queries, own(directions[0]));
    pass.slopes[1] += product(got.grad_keys, own(directions[1]));
    pass.slopes[2] += product(got.grad_values, own(directions[2]));
  });
  return pass;
}

/// The largest difference of a slope from the quotient of differences, relative to the slope.
double error_of(const Case& one, const comm::LossyOptions& options) {
  constexpr double kStep = 1e-4;
  const Inputs inputs = {WholeTensor(kShape, 1), WholeTensor(kShape, 2), WholeTensor(kShape, 3)};
  const Inputs directions = {WholeTensor(kShape, 31), WholeTensor(kShape, 32), WholeTensor(kShape, 33)};
  const Pass exact = pass_of(one, options, inputs, directions);
  double error = 0;
  for (std::size_t of = 0; of < 3; ++of) {
    const auto moved = [&](double by) {
      Inputs at = inputs;
      for (std::size_t i = 0; i < at[of].elems.size(); ++i) at[of].elems[i] += by * directions[of].elems[i];
      return pass_of(one, options, at, directions).loss;
    };
    const double slope = (moved(kStep) - moved(-kStep)) / (2 * kStep);
    error = std::max(error, std::abs(exact.slopes[of] - slope) / (std::abs(slope) + 1e-2));
  }
  return error;
}

TEST(SequenceAttention, UnderLossHasTheGradientOfTheForwardPass) {
  for (const Case& one : cases()) {
    for (const Fill fill : {Fill::kZero, Fill::kStale, Fill::kAbsent}) {
      for (const double rate : {0.3, 1.0}) {
        EXPECT_LE(error_of(one, options_of(rate, fill, std::nullopt)), 1e-6)
            << one.name << ", " << one.ranks << " ranks, " << comm::fill_entry(fill).name << " at " << rate;
      }
    }
  }
}

// Interleaved packets have elements of many places. A Hadamard transform loses a part of each value of a block, so the
// exact gradient of the forward pass differs; by default, the gradient ignores the losses.
TEST(SequenceAttention, UnderLossHasTheGradientOfTheForwardPassOfInterleavedPackets) {
  for (const Case& one : cases()) {
    comm::LossyOptions options = options_of(0.3, Fill::kZero, std::nullopt);
    comm::ClassRecovery& recovery = options.network.of(sim::TrafficClass::kSequenceForward)->recovery;
    recovery.interleave_packets = 3;
    EXPECT_LE(error_of(one, options), 1e-6) << one.name << ", " << one.ranks << " ranks";
    recovery.interleave_packets = 1;
    recovery.hadamard_block_elems = 4;
    comm::run_ranks(1, kTimeout, [&](comm::Communicator& inner) {
      EXPECT_FALSE(comm::LossyCommunicator(inner, options).stops_lost_gradients(sim::TrafficClass::kSequenceForward));
    });
  }
}

TEST(SequenceAttention, PassesTheGradientOfFilledValuesStraightThrough) {
  for (const Case& one : cases()) {
    for (const Fill fill : {Fill::kZero, Fill::kStale}) {
      EXPECT_GE(error_of(one, options_of(0.3, fill, LostGradient::kStraightThrough)), 1e-3)
          << one.name << ", " << one.ranks << " ranks, " << comm::fill_entry(fill).name;
    }
  }
}

}  // namespace
}  // namespace droptest::models::lost_gradient_test
