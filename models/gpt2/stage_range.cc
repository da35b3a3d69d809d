// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/stage_range.h"

#include <string>

#include "sim/error.h"

namespace droptest::models {

void validate(const StageRange& range, const SlotOptions& options, const Gpt2Config& config) {
  if (range.layers != config.layers || range.first < 0 || range.first >= range.end || range.end > config.layers) {
    throw ConfigError("GPT-2 stage: got blocks " + std::to_string(range.first) + " to " + std::to_string(range.end) +
                      " of " + std::to_string(range.layers) + ", want first < last within the model's " +
                      std::to_string(config.layers) + " blocks");
  }
  if (options.slots < 1) {
    throw ConfigError("GPT-2 stage: slots: got " + std::to_string(options.slots) + ", want at least 1");
  }
  if (options.tensor_sequence && options.place.cut) {
    throw ConfigError(
        "GPT-2 stage: a cut of saved residual streams with a cut of tokens: got both, want one, since a rank has the "
        "residual streams of its own tokens alone");
  }
  const std::size_t policies = options.recompute.size();
  if (policies != 0 && policies != static_cast<std::size_t>(config.layers)) {
    throw ConfigError("GPT-2 stage: recompute: got policies of " + std::to_string(policies) +
                      " blocks, want none or one for each of " + std::to_string(config.layers));
  }
}

void validate(const Gpt2Config& config, const SlotOptions& options, int tensor_ranks) {
  validate(config, tensor_ranks);
  validate(StageRange::whole(config), options, config);
  if (options.tensor_sequence && config.attention.sequence.ranks() > 1) {
    throw ConfigError("GPT-2: tensor_sequence: got a cut of tokens over tensor-parallel ranks with " +
                      std::to_string(config.attention.sequence.ranks()) + " sequence ranks, want one of the two");
  }
}

}  // namespace droptest::models
