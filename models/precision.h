// SPDX-License-Identifier: Apache-2.0
// The element types that a model computes with.
#pragma once

#include <compare>
#include <cstdint>

namespace droptest::models {

/// An element type that a model can use.
enum class Precision : std::uint8_t { kFloat32, kBfloat16 };

/// The element types of a model, with one meaning on all devices. Parameters, gradients, moments and sums are float.
struct ModelPrecision {
  Precision compute = Precision::kFloat32;  ///< of the operands of GEMMs with weight matrices
  Precision message = Precision::kFloat32;  ///< of the messages of sums over ranks; a lone rank sends nothing
  friend auto operator<=>(const ModelPrecision&, const ModelPrecision&) = default;
};

}  // namespace droptest::models
