// SPDX-License-Identifier: Apache-2.0
// What every layer of a rank's model needs beside its weights.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "comm/bfloat16.h"
#include "comm/communicator.h"
#include "models/gradient_mode.h"
#include "models/phase_times.h"
#include "models/team.h"

namespace droptest::models {

class Bf16Products;

/// An element type that a model can use.
enum class Precision : std::uint8_t { kFloat32, kBfloat16 };

/// The element types of a model, with one meaning on all devices. Parameters, gradients, moments and sums are float.
struct ModelPrecision {
  Precision compute = Precision::kFloat32;  ///< of the operands of products with weight matrices
  Precision message = Precision::kFloat32;  ///< of what the sums over ranks send and receive; a lone rank sends nothing
  friend auto operator<=>(const ModelPrecision&, const ModelPrecision&) = default;
};

/// Whether a forward pass leaves what a backward pass needs; one that does not uses the memory of one block for all.
enum class Keep : std::uint8_t { kForBackward, kNothing };

/// Where and with what a layer computes. Borrowed by the layers, owned by the model.
struct Execution {
  comm::Communicator& tensor_group;
  Team team = 1;
  GradientMode gradient_mode = GradientMode::kAdd;
  Keep keep = Keep::kForBackward;
  Bf16Products* bf16 = nullptr;                     ///< null: products of float numbers
  std::vector<comm::Bf16>* bf16_message = nullptr;  ///< room for a message; null: messages of the model's own numbers
  PhaseTimes* times = nullptr;                      ///< null: nobody asked
};

/// The extents of one forward pass.
struct BatchShape {
  std::int64_t batch = 0;
  std::int64_t length = 0;

  std::int64_t rows() const { return batch * length; }
  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

}  // namespace droptest::models
