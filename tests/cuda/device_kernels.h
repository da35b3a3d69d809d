// SPDX-License-Identifier: Apache-2.0
// Arrays on the device, numbers, and tolerances for tests of device kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/device_info.h"
#include "comm/device/device_tensor.h"
#include "comm/device/stream.h"
#include "models/kernels/narrow_floats.h"
#include "tests/models/formula_model.h"

namespace droptest::models {

inline float to_float(float value) { return value; }
template <class E>
E to_elem(double value) {
  if constexpr (std::is_same_v<E, float>) {
    return static_cast<float>(value);
  } else if constexpr (std::is_same_v<E, comm::Fp16>) {
    return comm::to_fp16(static_cast<float>(value));
  } else {
    return comm::to_bf16(static_cast<float>(value));
  }
}

/// Random numbers in [-1/2, 1/2) times a scale, as E.
template <class E>
std::vector<E> random_elems(std::uint64_t stream, std::int64_t count, double scale = 2) {
  std::vector<E> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(to_elem<E>(scale * mixed(stream, static_cast<std::uint64_t>(i))));
  }
  return values;
}

template <class T, class E>
std::vector<T> as(const std::vector<E>& values) {
  std::vector<T> result;
  for (const E value : values) result.push_back(static_cast<T>(to_float(value)));
  return result;
}

/// The relative rounding error: half the distance of neighbouring numbers.
template <class E>
inline constexpr double kRounding = std::is_same_v<E, float> ? 1.0 / (1 << 24) : 1.0 / (1 << 8);

/// `got` differs from `want` by at most `roundings` rounding errors of E plus `absolute`.
template <class E>
void expect_close(const std::vector<E>& got, const std::vector<double>& want, double absolute, double roundings = 1.01,
                  const std::string& what = "") {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(to_float(got[i])), want[i], absolute + roundings * kRounding<E> * std::abs(want[i]))
        << what << " element " << i << " of " << got.size();
  }
}

template <class E>
std::vector<std::uint8_t> bytes_of(const std::vector<E>& values) {
  std::vector<std::uint8_t> bytes(values.size() * sizeof(E));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// The beginning of an array: at a multiple of 256 bytes, or one element after it.
enum class Start { kAligned, kOdd };

/// An array on the device between guard bytes that must not change.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const std::vector<T>& values, comm::Stream& stream, Start start = Start::kAligned)
      : stream_(&stream),
        before_(kFence + (start == Start::kOdd ? 1 : 0)),
        count_(values.size()),
        buffer_(before_ + count_ + kFence, "array of a test") {
    std::vector<std::uint8_t> bytes((before_ + count_ + kFence) * sizeof(T), kFenceByte);
    if (count_ > 0) std::memcpy(bytes.data() + before_ * sizeof(T), values.data(), count_ * sizeof(T));
    comm::copy_to_device(std::as_bytes(std::span<const std::uint8_t>(bytes)),
                         reinterpret_cast<std::byte*>(buffer_.elems().data()), stream);
    stream.synchronize();
  }

  comm::DeviceSpan<T> elems() { return buffer_.elems().subspan(before_, count_); }
  comm::DeviceSpan<const T> read() { return elems(); }
  comm::Tensor tensor() { return comm::device_tensor(elems(), *stream_); }

  /// Waits for the stream.
  std::vector<T> values() {
    std::vector<std::uint8_t> bytes((before_ + count_ + kFence) * sizeof(T));
    comm::copy_to_host(reinterpret_cast<const std::byte*>(buffer_.elems().data()),
                       std::as_writable_bytes(std::span<std::uint8_t>(bytes)), *stream_);
    stream_->synchronize();
    const auto is_fence = [](std::uint8_t byte) { return byte == kFenceByte; };
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(before_ * sizeof(T)), is_fence))
        << "written before the array";
    EXPECT_TRUE(std::all_of(bytes.end() - static_cast<std::ptrdiff_t>(kFence * sizeof(T)), bytes.end(), is_fence))
        << "written behind the array";
    std::vector<T> values(count_);
    if (count_ > 0) std::memcpy(values.data(), bytes.data() + before_ * sizeof(T), count_ * sizeof(T));
    return values;
  }

 private:
  static constexpr std::size_t kFence = 128;  // guard elements, a multiple of 256 bytes
  static constexpr std::uint8_t kFenceByte = 0xFF;

  comm::Stream* stream_;
  std::size_t before_;
  std::size_t count_;
  comm::DeviceBuffer<T> buffer_;
};

/// An array with all elements NaN, or -1 for integers.
template <class T, std::integral Count>
DeviceArray<T> poisoned(Count count, comm::Stream& stream, Start start = Start::kAligned) {
  std::vector<T> values(static_cast<std::size_t>(count));
  if (count > 0) std::memset(static_cast<void*>(values.data()), 0xFF, values.size() * sizeof(T));
  return DeviceArray<T>(values, stream, start);
}

/// A test that needs a device. It skips with the reason if there is no device; with DROPTEST_REQUIRE_CUDA=1 it fails.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string absence = comm::survey_devices().absence; !absence.empty()) {
      const char* required = std::getenv("DROPTEST_REQUIRE_CUDA");
      ASSERT_FALSE(required != nullptr && std::string_view(required) == "1") << absence;
      GTEST_SKIP() << absence;
    }
    stream_ = std::make_unique<comm::Stream>();
  }
  comm::Stream& stream() { return *stream_; }

 private:
  std::unique_ptr<comm::Stream> stream_;
};

using DeviceElementTypes = testing::Types<float, Bf16>;

/// Widths with rows of whole, aligned packs of 16 bytes, and others.
struct RowsCase {
  std::int64_t rows;
  std::int64_t width;
  Start start;
};
inline const std::vector<RowsCase> kRowsCases = {
    {1, 1, Start::kAligned},    {19, 7, Start::kAligned},   {5, 64, Start::kAligned}, {5, 64, Start::kOdd},
    {33, 200, Start::kAligned}, {3, 2176, Start::kAligned}, {2, 601, Start::kOdd},    {0, 8, Start::kAligned}};
inline std::vector<RowsCase> rows_cases_and(const std::vector<RowsCase>& more) {
  std::vector<RowsCase> all = kRowsCases;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace droptest::models
