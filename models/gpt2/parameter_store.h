// SPDX-License-Identifier: Apache-2.0
// One rank's parameters: values and gradients in arenas of their device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "models/gpt2/gpt2_tensors.h"
#include "models/host_buffer.h"
#include "models/ops/ops.h"
#include "models/parameter.h"
#include "models/state_visitor.h"

namespace droptest::models {

/// The names of the tensors and the place of each in every arena: no memory. In an arena one tensor comes after
/// another, each on a cache line of its own; the elements between them belong to none.
struct ParameterTable {
  explicit ParameterTable(std::vector<Gpt2Tensor> list);
  /// Throws: CheckError for a name that no tensor has.
  std::size_t number_of(std::string_view name) const;
  /// The elements of tensor number i of an arena.
  template <class AnyTensor>
  AnyTensor part(const AnyTensor& of_arena, std::size_t i) const {
    return elements(of_arena, static_cast<std::int64_t>(ranges[i].offset), static_cast<std::int64_t>(ranges[i].count));
  }

  std::vector<Gpt2Tensor> tensors;
  std::vector<ParameterRange> ranges;  ///< of each tensor
  std::uint64_t elems = 0;             ///< of an arena
};

/// One number for each element of the tensors, in memory of the operations.
struct ParameterStorage {
  std::unique_ptr<Ops::Memory> memory;
  comm::Tensor tensor;
};

/// The values in the type that GEMMs read, where that is not the values' own.
class RoundedCopy {
 public:
  /// Without memory where the types are equal.
  RoundedCopy(const ParameterTable& table, Ops& ops);
  bool is_empty() const { return storage_.memory == nullptr; }
  const comm::Tensor& tensor() const { return storage_.tensor; }
  /// Whether tensor number i is in it: matrices other than the positions.
  static bool has(const ParameterTable& table, std::size_t i);
  /// Where operations leave it as it is when values change.
  void follow(const comm::Tensor& values);

 private:
  Ops& ops_;
  ParameterStorage storage_;
  std::unique_ptr<Ops::Ranges> ranges_;
};

/// An arena of the table.
ParameterStorage parameter_storage(const ParameterTable& table, comm::ElementType type, const std::string& purpose,
                                   Ops::Content content, Ops& ops);

/// Values and gradients, each in one storage that the table lays out, and the rounded copy of the values. Owner: one
/// rank's model.
class ParameterStore {
 public:
  /// Gradients are zero, values zero on the host and unspecified on a device. The operations are borrowed.
  ParameterStore(std::vector<Gpt2Tensor> tensors, Ops& ops);

  const ParameterTable& table() const { return table_; }
  const std::vector<Gpt2Tensor>& tensors() const { return table_.tensors; }
  /// Tensor number i.
  Weight weight(std::size_t i) const;

  /// A pass reads the weights of a block (kOutsideOfBlocks: of embeddings, last norm and head) from acquire() to
  /// release(). Nothing is sharded yet.
  static constexpr int kOutsideOfBlocks = -1;
  void acquire(int /*layer*/) {}
  void release(int /*layer*/) {}
  /// A backward pass has added its micro-batch to all gradients of that layer: once for each layer and micro-batch, the
  /// last block first and kOutsideOfBlocks last. A device may be at work on them.
  void on_gradient_ready(int layer) {
    if (gradient_ready_) gradient_ready_(layer);
  }
  /// Calls `gradient_ready(layer)` then: where buckets of gradients are to start their way.
  void set_gradient_ready(std::function<void(int)> gradient_ready) { gradient_ready_ = std::move(gradient_ready); }

  /// Before each pass: values change between passes in more ways than one.
  void round_values() { rounded_.follow(values_.tensor); }

  comm::Tensor values() const { return values_.tensor; }
  comm::Tensor gradients() const { return gradients_.tensor; }
  /// All of one arena of bfloat16 values, which the optimizer writes; or empty.
  comm::Tensor rounded() const { return rounded_.tensor(); }

  /// The parameters in host memory: on the host themselves, else copies. T is the type of the values.
  template <class T>
  std::span<Parameter<T>> host();
  enum class Fields : std::uint8_t { kValues, kValuesAndGradients };
  /// Makes copies in host memory equal to the device's. Waits for the device.
  void download(Fields fields);
  /// Makes the device's values equal to the copies. Waits for the device.
  void upload_values();

  /// Values and the rounded copy. Gradients are no state: a step starts from zeros.
  void visit_state(StateVisitor& visitor);

  /// Bytes of the arenas of these tensors, with AdamW's moments.
  static std::uint64_t device_bytes(std::vector<Gpt2Tensor> tensors, const OpsForm& form);

 private:
  template <class T>
  void make_host_parameters();
  std::span<std::byte> copy_of(std::size_t arena);

  ParameterTable table_;
  Ops& ops_;
  OpsTypes types_;
  ParameterStorage values_;
  ParameterStorage gradients_;
  RoundedCopy rounded_;
  std::function<void(int)> gradient_ready_;
  ZeroedMemory copies_;  ///< a device's values and gradients in host memory, from when they are first asked for
  std::variant<std::vector<Parameter<float>>, std::vector<Parameter<double>>> host_;
};

}  // namespace droptest::models
