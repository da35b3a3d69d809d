// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <cstdio>
#include <string>

#include "comm/device/cuda_error.h"
#include "comm/device/device_buffer.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

// A size in words: "1.25 GiB".
std::string size_text(std::size_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"bytes", "KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f" : "%.2f", value);
  return std::string(text.data()) + " " + kUnits[unit];
}

std::atomic<std::uint64_t> bytes_in_use = 0;
std::atomic<std::uint64_t> most_in_use = 0;

void count_allocation(std::uint64_t bytes) {
  const std::uint64_t now = bytes_in_use += bytes;
  std::uint64_t most = most_in_use;
  while (now > most && !most_in_use.compare_exchange_weak(most, now)) {
  }
}

[[noreturn]] void throw_out_of_memory(std::size_t bytes, std::string_view what) {
  cudaGetLastError();  // the failed allocation is no error of later calls
  int device = -1;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  cudaGetDevice(&device);
  const bool known = cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess;
  throw DeviceError("device " + std::to_string(device) + ": out of memory: " + std::string(what) + " wants " +
                    size_text(bytes) +
                    (known ? ", " + size_text(free_bytes) + " of " + size_text(total_bytes) + " are free" : "") +
                    "; a smaller batch, shorter sequences or fewer ranks on this device need less");
}

}  // namespace

DeviceMemory::DeviceMemory(std::size_t bytes, std::string_view what) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) throw_out_of_memory(bytes, what);
  check_cuda(status, "cudaMalloc for " + std::string(what));
  data_ = static_cast<std::byte*>(data);
  count_allocation(bytes);
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  cudaFree(data_);
  bytes_in_use -= bytes_;
}

DeviceMemoryUse device_memory_use() { return {bytes_in_use, most_in_use}; }
void restart_device_memory_peak() { most_in_use = bytes_in_use.load(); }

PinnedMemory::PinnedMemory(std::size_t bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  check_cuda(cudaMallocHost(&data, bytes), "cudaMallocHost of " + size_text(bytes));
  data_ = static_cast<std::byte*>(data);
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

void copy_to_device(std::span<const std::byte> from, std::byte* to, Stream& stream) {
  if (from.empty()) return;
  check_cuda(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream.handle()),
             "cudaMemcpyAsync to the device");
}

void copy_to_host(const std::byte* from, std::span<std::byte> to, Stream& stream) {
  if (to.empty()) return;
  check_cuda(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream.handle()),
             "cudaMemcpyAsync to the host");
}

void copy_on_device(const std::byte* from, std::byte* to, std::size_t bytes, Stream& stream) {
  if (bytes == 0 || from == to) return;
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.handle()),
             "cudaMemcpyAsync on the device");
}

void zero_on_device(std::byte* data, std::size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  check_cuda(cudaMemsetAsync(data, 0, bytes, stream.handle()), "cudaMemsetAsync");
}

}  // namespace droptest::comm
