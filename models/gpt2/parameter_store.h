// SPDX-License-Identifier: Apache-2.0
// One rank's parameters: values and gradients in arenas of their device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/parameter_arena.h"
#include "models/host_buffer.h"
#include "models/ops/ops.h"
#include "models/parameter.h"

namespace droptest::models {

/// Values, gradients, and the rounded values that GEMMs read where they are of another type, each in one arena that
/// parameter_arena() lays out. Owner: one rank's model.
class ParameterStore {
 public:
  /// Gradients are zero, values zero on the host and unspecified on a device. The operations are borrowed.
  ParameterStore(std::vector<Gpt2Tensor> tensors, Ops& ops);

  const std::vector<Gpt2Tensor>& tensors() const { return tensors_; }
  const ParameterArena& arena() const { return arena_; }
  /// Throws: CheckError for a name that no tensor has.
  std::size_t number_of(std::string_view name) const;
  /// Tensor number i.
  Weight weight(std::size_t i) const;

  /// A pass reads the weights of a block (-1: of the embeddings and the last norm) from acquire() to release(), and has
  /// written all their gradients of a step's last micro-batch at on_gradient_ready(). Nothing is sharded or sent yet.
  void acquire(int /*layer*/) {}
  void release(int /*layer*/) {}
  void on_gradient_ready(int /*layer*/) {}

  /// Before each pass: values change between passes in more ways than one.
  void round_values();

  comm::Tensor values() const { return values_.tensor; }
  comm::Tensor gradients() const { return gradients_.tensor; }
  /// All of one arena of bfloat16 values, which the optimizer writes; or empty.
  comm::Tensor rounded() const { return rounded_.tensor; }
  /// An arena of the same layout and type as the values.
  struct Arena {
    std::unique_ptr<Ops::Memory> memory;
    comm::Tensor tensor;
  };
  Arena make_arena(comm::ElementType type, const std::string& purpose, Ops::Content content) const;

  /// The parameters in host memory: on the host themselves, else copies. T is the type of the values.
  template <class T>
  std::span<Parameter<T>> host();
  enum class Fields : std::uint8_t { kValues, kValuesAndGradients };
  /// Makes copies in host memory equal to the device's. Waits for the device.
  void download(Fields fields);
  /// Makes the device's values equal to the copies. Waits for the device.
  void upload_values();

  /// What the arenas of these tensors take, with AdamW's moments.
  static std::uint64_t device_bytes(std::span<const Gpt2Tensor> tensors, const OpsForm& form);

 private:
  bool is_rounded_for_gemms(std::size_t i) const;
  template <class T>
  void make_host_parameters();
  std::span<std::byte> copy_of(std::size_t arena);

  std::vector<Gpt2Tensor> tensors_;
  ParameterArena arena_;
  Ops& ops_;
  OpsTypes types_;
  Arena values_;
  Arena gradients_;
  Arena rounded_;
  std::unique_ptr<Ops::Ranges> gemm_ranges_;
  ZeroedMemory copies_;  ///< a device's values and gradients in host memory, from when they are first asked for
  std::variant<std::vector<Parameter<float>>, std::vector<Parameter<double>>> host_;
};

}  // namespace droptest::models
