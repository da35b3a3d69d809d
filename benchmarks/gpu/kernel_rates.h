// SPDX-License-Identifier: Apache-2.0
// Times of kernels on a device, one after another or the forms of one piece of work in turns, and the numbers that they
// work on.
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

/// The use of a kernel in a training step of one rank.
struct InStep {
  double calls = 0;         ///< a call on half of the rows counts as half a call
  std::string group;        ///< the row of the table of shares: "attention, forward"
  std::string phase;        ///< that a trace has its time in (docs/profiling.md)
  std::string attention{};  ///< the kernel of attention in whose steps it is called; empty: all steps
};

/// Puts a kernel on the stream.
using KernelBody = std::function<void()>;

/// A GEMM, and the same GEMM with an elementwise operation or a sum behind it: as the GEMM's epilogue, or by own
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
  /// With kOfChoices each kernel is called once, and what is timed are the algorithms that cuBLASLt proposes for
  /// products.
  enum class Times : std::uint8_t { kOfKernels, kOfChoices };
  /// The stream is borrowed.
  explicit KernelRates(comm::Stream& stream, Times times = Times::kOfKernels) : stream_(stream), times_(times) {}

  /// With kOfChoices: times the proposals for each new product of `products`, which takes one of them from then on.
  void record_choices(models::CublasLtProducts& products, models::FloatProducts floats);

  /// `count`: bytes that one call reads and writes, each input and output once.
  void bytes(const std::string& name, double count, const KernelBody& body, const std::optional<InStep>& in_step = {});
  /// `count`: floating-point operations of one call.
  void operations(const std::string& name, double count, const KernelBody& body,
                  const std::optional<InStep>& in_step = {});
  void absent(const std::string& name, const std::string& reason);
  /// The three forms in turns, for epilogues() only. Returns their seconds; none with kOfChoices.
  std::vector<double> compare(const EpilogueForms& forms);
  /// The same, and adds to kernels() the GEMM, and the operation as the time of the epilogue's GEMM less that of the
  /// plain one.
  void epilogue(const EpilogueForms& forms);

  /// [{"name", "microseconds", "gigabytes_per_second" or "teraflops", "calls", "group", "phase", "attention"}, ...];
  /// `difference` is true where the time is a difference of two, "absence" in place of a time.
  const nlohmann::json& kernels() const { return kernels_; }
  /// [{"operation", "gemm", "plain_microseconds", "in_gemm_microseconds", "own_kernel_microseconds"}, ...].
  const nlohmann::json& epilogues() const { return epilogues_; }
  /// [{"row", "proposals", "first_microseconds", "fastest_microseconds"}, ...]: a row in the form of
  /// models/kernels/product_choices.cc for each product of which a proposal takes 0.98 of the time of what a run takes
  /// or less, and null for the others. A time is absent if the algorithm does not run.
  const nlohmann::json& choices() const { return choices_; }

 private:
  void call_once(const KernelBody& body);
  /// Of one call, from as many as take a twentieth of a second.
  double seconds_of(const KernelBody& body);
  double seconds_of(const KernelBody& body, int calls);
  /// Of one call of each, the medians of turns.
  std::vector<double> seconds_in_turns(const std::vector<KernelBody>& bodies);
  void add(nlohmann::json kernel, const std::optional<InStep>& in_step);

  comm::Stream& stream_;
  Times times_;
  nlohmann::json choices_ = nlohmann::json::array();
  nlohmann::json kernels_ = nlohmann::json::array();
  nlohmann::json epilogues_ = nlohmann::json::array();
};

/// Uniform numbers in [-1, 1) whose bits look random, for products of zeros take less power, and so have a higher
/// clock. They repeat after 2^20.
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

/// In [0, vocabulary).
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
