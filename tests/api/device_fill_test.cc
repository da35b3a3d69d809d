// SPDX-License-Identifier: Apache-2.0
// Fills of device memory in the order of a stream of another library.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/api/networks.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace droptest::api::device_fill_test {
namespace {

constexpr std::size_t kElems = 352 * 64;

TEST(DeviceFill, IsThatOfTheHostInTheOrderOfTheForeignStream) {
  fake_cuda::Scope scope;
  const NetworkHandle host = network_of(bernoulli_text(0.3));
  const NetworkHandle device = network_of(bernoulli_text(0.3));
  cudaStream_t stream = nullptr;
  void* data = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&data, kElems * sizeof(float)), cudaSuccess);
  const droptest_memory memory{1, 0, stream};
  for (int message = 0; message < 3; ++message) {
    std::vector<float> expected(kElems, 1.0F);
    std::vector<float> filled(kElems, 1.0F);
    ASSERT_EQ(cudaMemcpyAsync(data, filled.data(), kElems * sizeof(float), cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    ASSERT_EQ(droptest_flow_lose(contribution_flow(host.get()), DROPTEST_SUM, expected.data(), kElems, DROPTEST_FLOAT32,
                                 nullptr, nullptr),
              DROPTEST_OK);
    ASSERT_EQ(droptest_flow_lose(contribution_flow(device.get()), DROPTEST_SUM, data, kElems, DROPTEST_FLOAT32, &memory,
                                 nullptr),
              DROPTEST_OK)
        << droptest_last_error();
    ASSERT_EQ(cudaMemcpyAsync(filled.data(), data, kElems * sizeof(float), cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(filled, expected);
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);  // destroyed before the network that borrowed it
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(DeviceFill, AStreamThatIsCapturedIsRefused) {
  fake_cuda::Settings settings;
  settings.streams_capture = true;
  fake_cuda::Scope scope(settings);
  const NetworkHandle network = network_of(bernoulli_text(1));
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const droptest_memory memory{1, 0, stream};
  float nothing = 0;
  EXPECT_EQ(droptest_flow_lose(contribution_flow(network.get()), DROPTEST_SUM, &nothing, kElems, DROPTEST_FLOAT32,
                               &memory, nullptr),
            DROPTEST_DEVICE_ERROR);
  EXPECT_THAT(droptest_last_error(), testing::HasSubstr("captured into a CUDA graph"));
  EXPECT_EQ(fake_cuda::launches(), 0U);
  EXPECT_EQ(counts_of(contribution_flow(network.get())).messages, 0U);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace droptest::api::device_fill_test
