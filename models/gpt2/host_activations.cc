// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/host_activations.h"

#include <algorithm>

#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/lm_head.h"
#include "models/kernels/attention.h"

namespace droptest::models {

std::uint64_t host_activation_bytes(const Gpt2Config& config, int ranks, int rank, const BatchShape& shape,
                                    int threads) {
  const Gpt2Part part = gpt2_part(config, ranks, rank);
  // In double: a wrong spec may ask for more than 64 bits can count.
  const double layers = config.layers;
  const double width = config.width;
  const auto rows = static_cast<double>(shape.rows());
  const auto heads = static_cast<std::int64_t>(part.heads.count);
  const auto hidden = static_cast<double>(part.hidden.count);
  const AttentionShape attention{shape.batch, shape.length, heads, config.width / config.heads};
  const auto mixed = static_cast<double>(heads * attention.head_width);

  // Per layer: normalized, qkv and the attention output; normalized, GELU's derivative and its output.
  const double saved_by_layer = rows * (width + 3 * mixed + mixed) +
                                static_cast<double>(attention_statistics_elems(attention)) +
                                rows * (width + 2 * hidden);
  const double norms = 2 * layers + 1;
  const double streams = norms * rows * width;
  const double norm_statistics = norms * 2 * rows;
  // The last layer norm's output, a sum over ranks, and the gradients of the residual stream and of such an output.
  const double of_width = 4 * rows * width;
  const double of_branches =
      rows * (std::max(mixed, hidden) + 3 * mixed) + static_cast<double>(attention_scratch_elems(attention, threads));
  const auto largest_part = static_cast<std::int64_t>(gpt2_part(config, ranks, 0).vocabulary.count);
  const auto logits = static_cast<double>(
      LmHead<float>::logits_elems(shape.rows(), largest_part, static_cast<std::int64_t>(part.vocabulary.count)));
  const double of_rows = 7 * rows;  // tokens, targets, and five numbers of the cross-entropy
  const double elems = layers * saved_by_layer + streams + norm_statistics + of_width + of_branches + logits + of_rows;
  return static_cast<std::uint64_t>(std::min(elems * sizeof(float), 0x1p63));
}

}  // namespace droptest::models
