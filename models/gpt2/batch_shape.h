// SPDX-License-Identifier: Apache-2.0
// The extents of a forward pass, and whether a backward pass follows.
#pragma once

#include <cstdint>

namespace droptest::models {

/// Whether a forward pass saves activations for a backward pass; one that does not uses the memory of one block for
/// all.
enum class Keep : std::uint8_t { kForBackward, kNothing };

struct BatchShape {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t first_position = 0;  ///< of each sequence's first token here: not 0 for a later part of longer sequences

  std::int64_t rows() const { return batch * length; }
  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

}  // namespace droptest::models
