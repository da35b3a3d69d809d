// SPDX-License-Identifier: Apache-2.0
// Borrowed tensors: elements of a type that is known at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "comm/bfloat16.h"
#include "comm/float16.h"

namespace droptest::comm {

enum class ElementType : std::uint8_t { kFloat32, kFloat64, kUint64, kBfloat16, kFloat16, kInt32, kInt64, kUint8 };

/// The name of a type: "float32", ...
std::string_view element_type_name(ElementType type);
std::size_t element_bytes(ElementType type);
/// Whether it is a type of integers: sums wrap, and nothing is scaled.
bool is_integer(ElementType type);

/// Floats of 16 bits: computed as floats, and rounded to the nearest.
template <class T>
inline constexpr bool kIsNarrowFloat = std::is_same_v<T, Bf16> || std::is_same_v<T, Fp16>;

template <class T>
constexpr ElementType element_type_of() {
  if constexpr (std::is_same_v<T, float>) return ElementType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return ElementType::kFloat64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return ElementType::kUint64;
  if constexpr (std::is_same_v<T, Bf16>) return ElementType::kBfloat16;
  if constexpr (std::is_same_v<T, Fp16>) return ElementType::kFloat16;
  if constexpr (std::is_same_v<T, std::int32_t>) return ElementType::kInt32;
  if constexpr (std::is_same_v<T, std::int64_t>) return ElementType::kInt64;
  if constexpr (std::is_same_v<T, std::uint8_t>) return ElementType::kUint8;
}

class Stream;  // comm/device/stream.h

/// A borrowed range of elements of a type and in a memory that are known at run time. The memory is the host's or, with
/// a stream, that of the stream's device (comm/device/device_tensor.h makes such tensors). Work on device memory is
/// done in the order of its stream.
struct ConstTensor {
  ElementType type = ElementType::kFloat32;
  std::span<const std::byte> bytes;
  Stream* stream = nullptr;  ///< null: host memory

  ConstTensor() = default;
  ConstTensor(ElementType t, std::span<const std::byte> b, Stream* s = nullptr) : type(t), bytes(b), stream(s) {}
  template <class T>
  ConstTensor(std::span<const T> elems) : type(element_type_of<T>()), bytes(std::as_bytes(elems)) {}  // NOLINT
  template <class T>
  requires(!std::is_const_v<T>) ConstTensor(std::span<T> elems) : ConstTensor(std::span<const T>(elems)) {}  // NOLINT
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  std::uint64_t count_elems() const { return bytes.size() / element_bytes(type); }
};

/// A borrowed range of elements that may be written.
struct Tensor {
  ElementType type = ElementType::kFloat32;
  std::span<std::byte> bytes;
  Stream* stream = nullptr;  ///< null: host memory

  Tensor() = default;
  Tensor(ElementType t, std::span<std::byte> b, Stream* s = nullptr) : type(t), bytes(b), stream(s) {}
  template <class T>
  Tensor(std::span<T> elems) : type(element_type_of<T>()), bytes(std::as_writable_bytes(elems)) {}  // NOLINT
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  operator ConstTensor() const { return {type, bytes, stream}; }  // NOLINT
  std::uint64_t count_elems() const { return bytes.size() / element_bytes(type); }
};

}  // namespace droptest::comm
