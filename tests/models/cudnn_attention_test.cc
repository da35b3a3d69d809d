// SPDX-License-Identifier: Apache-2.0
// The kernel over cuDNN with a planner that interprets graphs: memory, and a batch in parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "comm/device/device_buffer.h"
#include "models/kernels/attention_kernel.h"
#include "models/kernels/narrow_floats.h"
#include "sim/error.h"
#include "tests/comm/error_text.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_cudnn.h"
#include "tests/models/kernel_numbers.h"

namespace droptest::models::cudnn_attention_test {
namespace {

using comm::ElementType;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kBoth = AttentionKernel::Passes::kBoth;
constexpr std::uint64_t kMebi = std::uint64_t{1} << 20U;

class CudnnAttention : public testing::Test {
 protected:
  void TearDown() override { fake_cuda::configure(fake_cuda::CudnnSettings()); }
  fake_cuda::Scope scope_;
};

/// Bytes of a new array on the device, with the numbers of a formula in bfloat16.
comm::DeviceMemory array_of(std::int64_t elems, std::uint64_t formula) {
  std::vector<Bf16> values;
  for (std::int64_t i = 0; i < elems; ++i) {
    values.push_back(comm::to_bf16(static_cast<float>(mixed(formula, static_cast<std::uint64_t>(i)))));
  }
  comm::DeviceMemory memory(values.size() * sizeof(Bf16), "a test's array");
  std::memcpy(memory.data(), values.data(), values.size() * sizeof(Bf16));
  return memory;
}

/// Results of both passes, as bytes.
std::vector<std::byte> results(const AttentionKernel& kernel, const AttentionShape& s) {
  comm::Stream stream;
  const std::int64_t elems = s.batch * s.length * s.heads * s.head_width;
  comm::DeviceMemory qkv = array_of(3 * elems, 1);
  comm::DeviceMemory grad_output = array_of(elems, 2);
  comm::DeviceMemory output = array_of(elems, 3);
  comm::DeviceMemory grad_qkv = array_of(3 * elems, 4);
  comm::DeviceMemory statistics(kernel.statistics_elems(s) * sizeof(float), "a test's statistics");
  const auto tensor = [&](comm::DeviceMemory& memory, std::uint64_t count, ElementType type) {
    return comm::Tensor{type, {memory.data(), count * comm::element_bytes(type)}, &stream};
  };
  const auto n = static_cast<std::uint64_t>(elems);
  comm::DeviceMemory forward_scratch(kernel.forward_scratch_elems(s, 1) * 2, "scratch");
  comm::DeviceMemory backward_scratch(kernel.backward_scratch_elems(s, 1) * 4, "scratch");
  const KernelTarget target{.stream = &stream};
  const comm::Tensor sums = tensor(statistics, kernel.statistics_elems(s), ElementType::kFloat32);
  kernel.forward({tensor(qkv, 3 * n, ElementType::kBfloat16), sums, tensor(output, n, ElementType::kBfloat16),
                  tensor(forward_scratch, kernel.forward_scratch_elems(s, 1), ElementType::kBfloat16)},
                 s, target);
  kernel.backward({tensor(grad_output, n, ElementType::kBfloat16), tensor(qkv, 3 * n, ElementType::kBfloat16),
                   tensor(output, n, ElementType::kBfloat16), sums, tensor(grad_qkv, 3 * n, ElementType::kBfloat16),
                   tensor(backward_scratch, kernel.backward_scratch_elems(s, 1), ElementType::kFloat32)},
                  s, target);
  stream.synchronize();
  std::vector<std::byte> bytes(output.data(), output.data() + 2 * n);
  bytes.insert(bytes.end(), grad_qkv.data(), grad_qkv.data() + 6 * n);
  return bytes;
}

TEST_F(CudnnAttention, ABatchInPartsHasTheBitsOfAWholeOne) {
  // The workspace of four sequences is the whole bound. The cases have parts of 2 and 3 sequences, and parts of 4,
  // because a sequence's 3 sums of 4 bytes end between two multiples of 16.
  for (const AttentionShape& shape :
       {AttentionShape{5, 4, 2, 8}, AttentionShape{7, 10, 2, 16}, AttentionShape{9, 3, 1, 8}}) {
    fake_cuda::configure(fake_cuda::CudnnSettings());
    fake_cuda::reset();
    const std::vector<std::byte> whole = results(*make_cudnn_attention(), shape);
    EXPECT_EQ(fake_cuda::launches("cudnn_backward"), 1U);
    fake_cuda::configure({.workspace_bytes_of_sequence = kMebi / 4});
    fake_cuda::reset();
    EXPECT_EQ(results(*make_cudnn_attention_within(1), shape), whole) << shape.batch << " sequences";
    EXPECT_EQ(fake_cuda::launches("cudnn_backward"), 3U);
  }
}

TEST_F(CudnnAttention, TheWorkspaceIsWhatTheBatchWantsUpToTheBound) {
  const auto bytes = [](std::int64_t batch, std::uint64_t most) {
    return make_cudnn_attention_within(most)->backward_scratch_elems({batch, 1024, 12, 64}, 1) * 4;
  };
  // 12 heads x 1,024 rows x (2 x 1,024 + 4 x 64 + 8) bytes a sequence.
  constexpr std::uint64_t kSequence = std::uint64_t{12} * 1024 * 2312;
  EXPECT_EQ(bytes(1, 256 * kMebi), kMebi + kSequence);
  EXPECT_EQ(bytes(4, 256 * kMebi), kMebi + 4 * kSequence);
  EXPECT_EQ(bytes(64, 256 * kMebi), 257 * kMebi);
  EXPECT_EQ(bytes(64, 1), kMebi + kSequence) << "a sequence at a time";
  EXPECT_EQ(make_cudnn_attention()->forward_scratch_elems({2, 1024, 12, 64}, 1) * 2, kMebi + 2 * 12 * 1024 * 8);
  EXPECT_EQ(make_cudnn_attention()->backward_scratch_elems({0, 1024, 12, 64}, 1), 0U);
}

TEST_F(CudnnAttention, AWorkspaceBeyondThePlanIsRefusedBeforeTheRun) {
  const AttentionShape shape{4, 8, 2, 8};
  fake_cuda::configure({.workspace_bytes_of_sequence = std::uint64_t{1} << 40U});
  EXPECT_THAT(config_error_of([&] { make_cudnn_attention()->prepare(shape, ElementType::kBfloat16, kBoth); }),
              AllOf(HasSubstr("wants a workspace of 1099511627776 bytes for 1 sequences"), HasSubstr("plan has")));
  fake_cuda::configure({.absence = "there is none"});
  EXPECT_EQ(config_error_of([&] { make_cudnn_attention()->prepare(shape, ElementType::kBfloat16, kBoth); }),
            "there is none");
  make_cudnn_attention()->prepare({0, 8, 2, 8}, ElementType::kBfloat16, kBoth);
}

}  // namespace
}  // namespace droptest::models::cudnn_attention_test
