// SPDX-License-Identifier: Apache-2.0
// Calls of any implementation's operations with formula numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "comm/bfloat16.h"
#include "comm/float16.h"
#include "models/ops/ops.h"
#include "tests/models/formula_model.h"

namespace droptest::models {

using Numbers = std::vector<double>;

/// Operations with tensors of formula numbers, and their results as doubles.
class Bench {
 public:
  explicit Bench(Ops& operations) : ops(operations) {}

  Ops& ops;
  OpsTypes types = ops.form().types();

  comm::Tensor tensor(const Numbers& numbers, comm::ElementType type) {
    comm::Tensor result = empty(static_cast<std::int64_t>(numbers.size()), type);
    std::vector<std::byte> bytes(result.bytes.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) put(numbers[i], type, bytes, i);
    ops.copy_from_host(bytes, result);
    return result;
  }
  comm::Tensor formula(std::uint64_t stream, std::int64_t elems, comm::ElementType type, double around = 0) {
    Numbers numbers;
    for (std::int64_t i = 0; i < elems; ++i) numbers.push_back(around + mixed(stream, static_cast<std::uint64_t>(i)));
    return tensor(numbers, type);
  }
  comm::Tensor activations(std::uint64_t stream, std::int64_t elems) {
    return formula(stream, elems, types.activations);
  }
  comm::Tensor empty(std::int64_t elems, comm::ElementType type) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(elems) * comm::element_bytes(type);
    memory_.push_back(ops.allocate(bytes, "a test", Ops::Content::kZeros));
    return {type, {memory_.back()->data(), static_cast<std::size_t>(bytes)}, ops.stream()};
  }
  comm::Tensor room(std::int64_t elems) {
    return types.operands == types.activations ? comm::Tensor() : empty(elems, types.operands);
  }
  Operand operand(const comm::Tensor& values, double factor = 1) {
    return ops.operand(values, factor, room(static_cast<std::int64_t>(values.count_elems())));
  }
  TokenIds tokens(const std::vector<std::int32_t>& list) {
    memory_.push_back(ops.allocate(list.size() * sizeof(std::int32_t), "a test", Ops::Content::kZeros));
    const TokenIds ids{reinterpret_cast<std::int32_t*>(memory_.back()->data()), list.size()};
    ops.take_tokens(list, ids);
    return ids;
  }
  /// A weight with a gradient of ones.
  Weight weight(std::uint64_t stream, std::int64_t elems, double around = 0) {
    return {formula(stream, elems, types.activations, around), formula(stream, elems, types.operands, around),
            tensor(Numbers(static_cast<std::size_t>(elems), 1.0), types.parameters)};
  }

  void keep(const comm::ConstTensor& tensor) {
    std::vector<std::byte> bytes(tensor.bytes.size());
    ops.copy_to_host(tensor, bytes);
    ops.synchronize();
    for (std::size_t i = 0; i < tensor.count_elems(); ++i) results.push_back(get(tensor.type, bytes, i));
  }
  Numbers results;

 private:
  static void put(double number, comm::ElementType type, std::vector<std::byte>& bytes, std::size_t i) {
    const auto write = [&](auto value) { std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value)); };
    if (type == comm::ElementType::kFloat64) return write(number);
    if (type == comm::ElementType::kFloat32) return write(static_cast<float>(number));
    if (type == comm::ElementType::kFloat16) return write(comm::to_fp16(static_cast<float>(number)));
    write(comm::to_bf16(static_cast<float>(number)));
  }
  static double get(comm::ElementType type, const std::vector<std::byte>& bytes, std::size_t i) {
    const auto read = [&](auto value) {
      std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
      return value;
    };
    if (type == comm::ElementType::kFloat64) return read(double{});
    if (type == comm::ElementType::kFloat32) return static_cast<double>(read(float{}));
    if (type == comm::ElementType::kFloat16) return static_cast<double>(comm::to_float(read(comm::Fp16{})));
    return static_cast<double>(comm::to_float(read(comm::Bf16{})));
  }

  std::vector<std::unique_ptr<Ops::Memory>> memory_;
};

}  // namespace droptest::models
