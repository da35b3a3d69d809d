// SPDX-License-Identifier: Apache-2.0
// One rank's part of a trainable tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace droptest::models {

/// Whether each tensor-parallel rank has a part of the tensor or a copy of it.
enum class Placement : std::uint8_t { kSharded, kReplicated };
/// Whether the optimizer decays the tensor; only matrices decay.
enum class Decay : std::uint8_t { kDecays, kKeeps };

/// The layer number of tensors outside of blocks: embeddings, last norm.
inline constexpr int kOutsideOfBlocks = -1;

/// The number of elements in a chunk of the gradient norm. Each tensor is cut into chunks from its beginning, so that
/// the sum of a chunk does not depend on the rank that owns it.
inline constexpr std::uint64_t kNormChunkElems = 8192;

/// The elements offset, ..., offset + count - 1 of an arena of parameters.
struct ParameterRange {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
  Decay decay = Decay::kKeeps;
  double learning_rate_factor = 1;
};

template <class T>
struct Parameter {
  std::string name;                  ///< Hugging Face's name, without prefix: "h.0.attn.c_attn.weight"
  std::string group;                 ///< group in divergence reports: "embedding", "layer_norm", "bias", "matrix"
  std::vector<std::uint64_t> shape;  ///< shape of this rank's part
  Placement placement = Placement::kSharded;
  Decay decay = Decay::kKeeps;
  std::span<T> value;
  std::span<T> gradient;
};

}  // namespace droptest::models
