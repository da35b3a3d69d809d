// SPDX-License-Identifier: Apache-2.0
// The device draws the same random bits as the host.
#include <Random123/philox.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "sim/random/philox.h"

namespace droptest::sim {
namespace {

constexpr int kBlocks = 1000;

__global__ void philox_kernel(std::uint64_t key, const std::uint32_t* counters, std::uint32_t* outputs) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < kBlocks;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    const r123::Philox4x32_R<10>::key_type k = {
        {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}};
    r123::Philox4x32_R<10>::ctr_type counter;
    for (int w = 0; w < 4; ++w) counter[w] = counters[4 * i + w];
    const auto block = r123::Philox4x32_R<10>()(counter, k);
    for (int w = 0; w < 4; ++w) outputs[4 * i + w] = block[w];
  }
}

/// Why no device can be used, or nothing.
std::string device_absence() {
  int devices = 0;  // not changed by the call if there is no driver
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) return std::string("cudaGetDeviceCount: ") + cudaGetErrorString(status);
  return devices > 0 ? "" : "no CUDA device";
}

TEST(PhiloxCuda, DrawsTheHostsBits) {
  if (const std::string absence = device_absence(); !absence.empty()) {
    const char* required = std::getenv("DROPTEST_REQUIRE_CUDA");
    ASSERT_FALSE(required != nullptr && std::string(required) == "1") << absence;
    GTEST_SKIP() << absence;
  }
  constexpr std::uint64_t kKey = 0x0123456789abcdefULL;
  std::vector<std::uint32_t> counters(4 * kBlocks), expected(4 * kBlocks), outputs(4 * kBlocks, 0xdeadbeefU);
  for (int i = 0; i < kBlocks; ++i) {
    const Link link{TrafficClass::kTpForward, Half::kGather, static_cast<std::uint16_t>(i % 7), 3};
    const PhiloxCounter counter =
        link_counter(link, Purpose::kLossTransition, (std::uint64_t{1} << 33) + static_cast<std::uint64_t>(i));
    const PhiloxBlock block = philox(kKey, counter);
    for (int w = 0; w < 4; ++w) {
      counters[4 * i + w] = counter[static_cast<std::size_t>(w)];
      expected[4 * i + w] = block[static_cast<std::size_t>(w)];
    }
  }
  std::uint32_t* device_counters = nullptr;
  std::uint32_t* device_outputs = nullptr;
  const std::size_t bytes = counters.size() * sizeof(std::uint32_t);
  ASSERT_EQ(cudaMalloc(&device_counters, bytes), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device_outputs, bytes), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(device_counters, counters.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
  philox_kernel<<<3, 128>>>(kKey, device_counters, device_outputs);
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(outputs.data(), device_outputs, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(outputs, expected);
  EXPECT_EQ(cudaFree(device_counters), cudaSuccess);
  EXPECT_EQ(cudaFree(device_outputs), cudaSuccess);
}

}  // namespace
}  // namespace droptest::sim
