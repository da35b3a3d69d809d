// SPDX-License-Identifier: Apache-2.0
// The end of a model on a device: logits by the tied embedding, cross-entropy, and the gradients of both.
#pragma once

#include <cstdint>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/gpt2/device_activations.h"
#include "models/gpt2/device_collectives.h"
#include "models/gradient_mode.h"
#include "models/kernels/cross_entropy.h"
#include "models/kernels/matrix_products.h"

namespace droptest::models {

/// How the rows of logits are cut: functions of what all ranks know, so that their reductions match.
struct LogitChunks {
  std::int64_t stride = 0;  ///< elements of a row, for columns of which products can begin anywhere
  std::int64_t rows = 0;    ///< of each chunk but the last
};

/// Chunks of at most `bytes`, but at least a row. `largest_part`: columns of the rank that has most.
LogitChunks logit_chunks(std::int64_t rows, std::int64_t largest_part, std::uint64_t element_bytes,
                         std::uint64_t bytes);

/// What one step's head works with; borrowed.
template <class E>
struct DeviceHead {
  comm::Stream& stream;
  MatrixProducts& products;
  DeviceCollectives& collectives;
  TokenRange range;  ///< true tokens of this rank
  std::int64_t width = 0;
  comm::DeviceSpan<const E> wte;  ///< [at least range.count, width]
  comm::DeviceSpan<float> wte_gradient;

  /// buffers.losses becomes each row's loss in nats, the same on every rank. Ranks: with more than one, all; three
  /// all_reduces of `control` per chunk. A lone rank has the whole vocabulary and makes none.
  void forward(DeviceActivations<E>& buffers) const;
  /// The same; also sets or adds scale x d(mean loss) / d(wte), and grad_normalized becomes scale x d(mean loss) /
  /// d(normalised input), summed over ranks from join() on. Ranks: all; one all_reduce more.
  void forward_backward(DeviceActivations<E>& buffers, double scale, GradientMode mode) const;

 private:
  struct Chunk;
  Chunk chunk_at(DeviceActivations<E>& buffers, std::int64_t first_row) const;
  void compute_logits(const Chunk& chunk) const;
  void reduce_statistics(const Chunk& chunk) const;
};

}  // namespace droptest::models
