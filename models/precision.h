// SPDX-License-Identifier: Apache-2.0
// The element types that a model computes with.
#pragma once

#include <compare>
#include <cstdint>

#include "comm/tensor.h"

namespace droptest::models {

/// An element type that a model can use. kTf32: operands are float32 in memory, and a CUDA device multiplies only their
/// upper 19 bits (sign, 8 of exponent, 10 of fraction).
enum class Precision : std::uint8_t { kFloat32, kBfloat16, kFloat16, kTf32 };

/// The type of the elements in memory.
constexpr comm::ElementType element_type(Precision precision) {
  if (precision == Precision::kBfloat16) return comm::ElementType::kBfloat16;
  if (precision == Precision::kFloat16) return comm::ElementType::kFloat16;
  return comm::ElementType::kFloat32;
}

/// The element types of a model, with the same meaning on all devices. Parameters, their gradients, moments and sums
/// are float.
struct ModelPrecision {
  Precision compute = Precision::kFloat32;  ///< type of the operands of GEMMs with weight matrices
  Precision message = Precision::kFloat32;  ///< type of messages of sums over ranks; a single rank sends nothing

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    const auto type = [&visit](const char* name, Precision& precision) {
      using enum Precision;
      visit(name, precision, {{"float32", kFloat32}, {"bfloat16", kBfloat16}, {"float16", kFloat16}, {"tf32", kTf32}});
    };
    type("compute", compute);
    type("message", message);
  }
  friend auto operator<=>(const ModelPrecision&, const ModelPrecision&) = default;
};

}  // namespace droptest::models
