// SPDX-License-Identifier: Apache-2.0
// Measures the times of kernels on a device, and makes the numbers that they work on. Alternative forms of one piece of
// work are measured in turns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/bfloat16.h"
#include "comm/device/device_buffer.h"
#include "comm/device/device_span.h"
#include "comm/device/device_tensor.h"
#include "comm/device/stream.h"
#include "models/kernels/cublaslt_products.h"
#include "models/kernels/matrix_products.h"
#include "sim/random/philox.h"

namespace droptest {

/// How a training step of one rank uses a kernel.
struct InStep {
  double calls = 0;         ///< a call on half of the rows counts as half a call
  std::string group;        ///< row in the table of shares: "attention, forward"
  std::string phase;        ///< phase of a trace with its time (docs/profiling.md)
  std::string attention{};  ///< only steps with this attention kernel call it; empty: all steps
};

/// Puts a kernel on the stream.
using KernelBody = std::function<void()>;

/// A GEMM, and the same GEMM followed by an elementwise operation or a sum: as the GEMM's epilogue, or by droptest's
/// kernels.
struct EpilogueForms {
  std::string gemm;       ///< "c_fc weight gradient"
  std::string operation;  ///< "bias gradient of c_fc"
  double operations = 0;  ///< floating-point operations of the GEMM
  KernelBody plain;
  KernelBody in_gemm;
  KernelBody by_own_kernel;
  InStep gemm_in_step;
  InStep operation_in_step;
};

class KernelRates {
 public:
  /// kOfKernels measures kernels. kOfChoices calls each kernel once, and measures the algorithms that cuBLASLt proposes
  /// for GEMMs.
  enum class Times : std::uint8_t { kOfKernels, kOfChoices };
  /// The stream is borrowed.
  explicit KernelRates(comm::Stream& stream, Times times = Times::kOfKernels) : stream_(stream), times_(times) {}

  /// Only with kOfChoices: measures the proposals for each new GEMM of `products`, which uses one of them from then on.
  void record_choices(models::CublasLtProducts& products, models::FloatProducts floats);

  /// `count` is the number of bytes that one call reads and writes, each input and output once.
  void bytes(const std::string& name, double count, const KernelBody& body, const std::optional<InStep>& in_step = {});
  /// `count` is the number of floating-point operations of one call.
  void operations(const std::string& name, double count, const KernelBody& body,
                  const std::optional<InStep>& in_step = {});
  void absent(const std::string& name, const std::string& reason);
  /// Measures the three forms in turns, only for epilogues(). Returns their seconds; empty with kOfChoices.
  std::vector<double> compare(const EpilogueForms& forms);
  /// compare(), and adds to kernels() the plain GEMM, and the operation with the difference between the GEMM with
  /// epilogue and the plain one.
  void epilogue(const EpilogueForms& forms);

  /// [{"name", "microseconds", "gigabytes_per_second" or "teraflops", "calls", "group", "phase", "attention"}, ...].
  /// "difference" is true if the time is a difference of two times; "absence" replaces the time of a missing kernel.
  const nlohmann::json& kernels() const { return kernels_; }
  /// [{"operation", "gemm", "plain_microseconds", "in_gemm_microseconds", "own_kernel_microseconds"}, ...].
  const nlohmann::json& epilogues() const { return epilogues_; }
  /// [{"row", "proposals", "first_microseconds", "fastest_microseconds"}, ...]: a row in the form of
  /// models/kernels/product_choices.cc for each GEMM with a proposal that takes at most 0.98 of the time of the present
  /// algorithm; null for the others. A time is absent if the algorithm does not run.
  const nlohmann::json& choices() const { return choices_; }

 private:
  void call_once(const KernelBody& body);
  /// The seconds of one call, from the calls of a twentieth of a second.
  double seconds_of(const KernelBody& body);
  double seconds_of(const KernelBody& body, int calls);
  /// The seconds of one call of each kernel, medians over turns.
  std::vector<double> seconds_in_turns(const std::vector<KernelBody>& bodies);
  void add(nlohmann::json kernel, const std::optional<InStep>& in_step);

  comm::Stream& stream_;
  Times times_;
  nlohmann::json choices_ = nlohmann::json::array();
  nlohmann::json kernels_ = nlohmann::json::array();
  nlohmann::json epilogues_ = nlohmann::json::array();
};

/// Uniform numbers in [-1, 1) with random-looking bits, because GEMMs of zeros need less power and so run at a higher
/// clock. The numbers repeat after 2^20.
template <class T>
comm::DeviceBuffer<T> random_numbers(std::int64_t count, comm::Stream& stream) {
  comm::DeviceBuffer<T> buffer(static_cast<std::size_t>(count), "benchmark");
  const comm::DeviceSpan<T> all = buffer.elems();
  std::vector<T> values(std::min<std::size_t>(all.size(), std::size_t{1} << 20U));
  sim::PhiloxEngine engine(1, sim::Purpose::kSyntheticInput, 0);
  for (T& value : values) {
    const auto number = static_cast<float>(static_cast<std::int32_t>(engine())) * 0x1p-31F;
    if constexpr (std::is_same_v<T, comm::Bf16>) value = comm::to_bf16(number);
    if constexpr (!std::is_same_v<T, comm::Bf16>) value = number;
  }
  comm::copy_to_device(std::span<const T>(values), all.first(values.size()), stream);
  for (std::size_t done = values.size(); done < all.size();) {
    const std::size_t more = std::min(done, all.size() - done);
    comm::copy_on_device(comm::DeviceSpan<const T>(all.first(more)), all.subspan(done, more), stream);
    done += more;
  }
  stream.synchronize();
  return buffer;
}

template <class T>
comm::DeviceBuffer<T> zeros(std::int64_t count, comm::Stream& stream) {
  comm::DeviceBuffer<T> buffer(static_cast<std::size_t>(count), "benchmark");
  comm::zero_on_device(buffer.elems(), stream);
  return buffer;
}

/// Random tokens in [0, vocabulary).
std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocabulary);
comm::DeviceBuffer<std::int32_t> on_device(std::span<const std::int32_t> values, comm::Stream& stream);

template <class T>
comm::Tensor tensor(comm::DeviceBuffer<T>& buffer, comm::Stream& stream) {
  return comm::device_tensor(buffer.elems(), stream);
}

template <class T>
comm::DeviceSpan<T> first(comm::DeviceBuffer<T>& buffer, std::int64_t count) {
  return buffer.elems().first(static_cast<std::size_t>(count));
}

}  // namespace droptest
