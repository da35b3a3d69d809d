// SPDX-License-Identifier: Apache-2.0
// GPT-2 against PyTorch; scripts/make_gpt2_vectors.py made the vectors.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "models/files/safetensors.h"
#include "tests/models/formula_model.h"

namespace droptest::models::gpt2_torch_test {
namespace {

constexpr Gpt2Config kTiny{2, 32, 4, 12, 97};
constexpr int kBatch = 2;
constexpr int kLength = 12;

std::vector<double> doubles(const StoredTensors& tensors, const std::string& name) {
  const StoredTensor& tensor = tensors.at(name);
  EXPECT_EQ(tensor.dtype, "F64");
  std::vector<double> values(tensor.bytes.size() / sizeof(double));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

StoredTensors read_vectors(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  return parse_safetensors(std::as_bytes(std::span(content)), path);
}

/// Three clipped AdamW steps as the script takes them; `bound` is on each tensor's relative difference.
template <class T>
void expect_torch(int ranks, double bound) {
  const StoredTensors vectors = read_vectors(DROPTEST_VECTORS "/gpt2_tiny.safetensors");
  const std::vector<double> losses = doubles(vectors, "losses");
  const std::vector<double> norms = doubles(vectors, "norms");
  const auto tokens = formula_tokens(0, kBatch * kLength, kTiny.vocabulary);
  const auto targets = formula_tokens(1, kBatch * kLength, kTiny.vocabulary);
  Tensors gradients;
  Tensors final_weights;
  std::mutex mutex;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<T> model(kTiny, group, 1, {}, {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-4, .weight_decay = 0.1});
    set_formula_weights(model, group);
    for (std::size_t step = 0; step < losses.size(); ++step) {
      model.zero_gradients();
      const double loss = model.forward_backward(tokens, targets, kBatch, kLength, 1.0);
      const double norm = model.gradient_norm();
      EXPECT_NEAR(loss / losses[step], 1, bound) << "step " << step;
      EXPECT_NEAR(norm / norms[step], 1, bound) << "step " << step;
      if (step == 0) {
        const std::lock_guard lock(mutex);
        add_to_whole(model, group, &Parameter<T>::gradient, gradients);
      }
      model.step(1e-2, clip_scale(norm, 0.5));
    }
    const std::lock_guard lock(mutex);
    add_to_whole(model, group, &Parameter<T>::value, final_weights);
  });
  ASSERT_EQ(gradients.size(), 28U);
  for (const auto& item : gradients) {
    EXPECT_LE(relative_difference(item.second, doubles(vectors, "gradient/" + item.first)), bound) << item.first;
    EXPECT_LE(relative_difference(final_weights.at(item.first), doubles(vectors, "final/" + item.first)), bound)
        << item.first;
  }
}

// Both sides work in double: rounding only. PyTorch's clip and ours round the scale alike.
TEST(Gpt2Torch, DoubleEqualsPyTorchToRounding) { expect_torch<double>(1, 1e-12); }
TEST(Gpt2Torch, DoubleOnThreeRanksEqualsPyTorch) { expect_torch<double>(3, 1e-12); }
// semantics: a float pass differs from double by 7e-7 per tensor.
TEST(Gpt2Torch, FloatEqualsPyTorchToFloatRounding) { expect_torch<float>(1, 1e-5); }
TEST(Gpt2Torch, FloatOnTwoRanksEqualsPyTorch) { expect_torch<float>(2, 1e-5); }

}  // namespace
}  // namespace droptest::models::gpt2_torch_test
