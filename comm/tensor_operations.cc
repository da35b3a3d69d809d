// SPDX-License-Identifier: Apache-2.0
#include "comm/tensor_operations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "comm/device/device_buffer.h"
#include "comm/device/tensor_operations.h"
#include "comm/visit_elements.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

template <class T>
T lowest() {
  using Limits = std::numeric_limits<WideOf<T>>;
  return narrowed<T>(Limits::has_infinity ? -Limits::infinity() : Limits::lowest());
}

template <class T>
void scale_elems(std::span<T> data, double factor) {
  const auto f = static_cast<WideOf<T>>(factor);
  for (T& x : data) x = narrowed<T>(static_cast<WideOf<T>>(widened(x) * f));
}

template <class T>
void divide_elems(std::span<T> data, double divisor) {
  const auto d = static_cast<WideOf<T>>(divisor);
  for (T& x : data) x = narrowed<T>(static_cast<WideOf<T>>(widened(x) / d));
}

ElementRun all_of(Tensor data, double factor = 1) { return {0, data.count_elems(), factor}; }

}  // namespace

Tensor slice(Tensor data, sim::ElementRange elements) {
  const std::size_t size = element_bytes(data.type);
  return {data.type, data.bytes.subspan(elements.begin * size, elements.size() * size), data.stream};
}

ConstTensor slice(ConstTensor data, sim::ElementRange elements) {
  const std::size_t size = element_bytes(data.type);
  return {data.type, data.bytes.subspan(elements.begin * size, elements.size() * size), data.stream};
}

void copy(ConstTensor from, Tensor to) {
  DROPTEST_CHECK(from.bytes.size() == to.bytes.size(),
                 "copy of " + std::to_string(from.bytes.size()) + " bytes to " + std::to_string(to.bytes.size()));
  if (from.bytes.empty() || from.bytes.data() == to.bytes.data()) return;
  if (to.stream != nullptr) {
    DROPTEST_CHECK(from.stream != nullptr, "copy between host and device memory");
    return copy_on_device(from.bytes.data(), to.bytes.data(), to.bytes.size(), *to.stream);
  }
  std::memcpy(to.bytes.data(), from.bytes.data(), from.bytes.size());
}

void zero(Tensor data) {
  if (data.bytes.empty()) return;
  if (data.stream != nullptr) return zero_on_device(data.bytes.data(), data.bytes.size(), *data.stream);
  std::memset(data.bytes.data(), 0, data.bytes.size());  // all bits zero is zero in every element type
}

void set_lowest(Tensor data) {
  if (data.stream != nullptr) return change_runs_on_device(RunOperation::kLowest, {}, data, std::array{all_of(data)});
  visit_elements(data.type, [&]<class T>(std::type_identity<T>) { std::ranges::fill(data.as<T>(), lowest<T>()); });
}

void divide(Tensor data, double divisor) {
  DROPTEST_CHECK(!is_integer(data.type), "integers are not divided");
  if (data.stream != nullptr) {
    return change_runs_on_device(RunOperation::kDivide, {}, data, std::array{all_of(data, divisor)});
  }
  visit_elements(data.type, [&]<class T>(std::type_identity<T>) { divide_elems(data.as<T>(), divisor); });
}

void scale(Tensor data, double factor) {
  DROPTEST_CHECK(!is_integer(data.type), "integers are not rescaled");
  if (data.stream != nullptr) {
    return change_runs_on_device(RunOperation::kScale, {}, data, std::array{all_of(data, factor)});
  }
  visit_elements(data.type, [&]<class T>(std::type_identity<T>) { scale_elems(data.as<T>(), factor); });
}

void zero_not_finite(Tensor data) {
  DROPTEST_CHECK(!is_integer(data.type), "integers are finite");
  if (data.stream != nullptr) return change_runs_on_device(RunOperation::kFinite, {}, data, std::array{all_of(data)});
  visit_elements(data.type, [&]<class T>(std::type_identity<T>) {
    for (T& x : data.as<T>()) {
      if (!std::isfinite(number_of(x))) x = T{};
    }
  });
}

}  // namespace droptest::comm
