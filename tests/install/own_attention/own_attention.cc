// SPDX-License-Identifier: Apache-2.0
// An attention of one's own over ranks: three ranks share each sequence, and the output is that of one rank.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <span>
#include <vector>

#include "comm/run_ranks.h"
#include "models/attention/distributed_attention.h"

namespace {

using namespace droptest;

constexpr std::int64_t kBatch = 2, kHeads = 4, kWidth = 8;
constexpr std::array<std::int64_t, 3> kTokens = {5, 0, 6};  // tokens of each rank: any numbers
constexpr std::int64_t kLength = 11;

/// Values weighted by 1 + the distance of their tokens from the query's: no softmax, no mask, but all keys.
class DistanceAttention final : public models::LocalAttention<float> {
 public:
  void forward(const models::LocalInputs<float>& in, const models::HeadView<float>& output) override {
    for_pairs(in.queries.shape, [&](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k, float weight) {
      for (std::int64_t d = 0; d < kWidth; ++d) output.at(b, q, h)[d] += weight * in.values.at(b, k, h)[d];
    });
  }
  void backward(const models::LocalInputs<float>& in, const models::HeadView<const float>& /*output*/,
                const models::HeadView<const float>& grad_output,
                const models::AttentionGradients<float>& gradients) override {
    for_pairs(in.queries.shape, [&](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k, float weight) {
      for (std::int64_t d = 0; d < kWidth; ++d) gradients.values.at(b, k, h)[d] += weight * grad_output.at(b, q, h)[d];
    });
  }

 private:
  template <class F>
  static void for_pairs(const models::HeadShape& shape, const F& f) {
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        for (std::int64_t q = 0; q < shape.tokens; ++q) {
          for (std::int64_t k = 0; k < shape.tokens; ++k) f(b, h, q, k, 1.0F / static_cast<float>(1 + std::abs(q - k)));
        }
      }
    }
  }
};

float value_at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) {
  return std::sin(static_cast<float>(((b * kLength + t) * kHeads + h) * kWidth + d));
}

/// The largest difference of a rank's outputs from the sum over all values.
float largest_error(comm::Communicator& group) {
  std::int64_t first = 0;
  for (int rank = 0; rank < group.rank(); ++rank) first += kTokens[static_cast<std::size_t>(rank)];
  const std::int64_t tokens = kTokens[static_cast<std::size_t>(group.rank())];
  std::vector<float> values;  // [batch, tokens, heads, width], as PyTorch has it
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t t = first; t < first + tokens; ++t) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        for (std::int64_t d = 0; d < kWidth; ++d) values.push_back(value_at(b, t, h, d));
      }
    }
  }
  DistanceAttention own;
  models::DistributedAttention<float> attention(group, own, models::token_layout_from_name("batch_first"), kHeads,
                                                kWidth);
  attention.set_lengths(kBatch, tokens);
  std::vector<float> output(values.size());
  const models::DistributedAttention<float>::Input input{values, {kBatch, tokens, kHeads, kWidth}};
  attention.forward(input, input, input, nullptr, output);
  float worst = 0;
  const float* got = output.data();
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t t = first; t < first + tokens; ++t) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        for (std::int64_t d = 0; d < kWidth; ++d, ++got) {
          float want = 0;
          for (std::int64_t k = 0; k < kLength; ++k) {
            want += value_at(b, k, h, d) / static_cast<float>(1 + std::abs(t - k));
          }
          worst = std::max(worst, std::abs(*got - want));
        }
      }
    }
  }
  return worst;
}

}  // namespace

int main() {
  float worst = 0;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(kTokens.size()), std::chrono::seconds(60), [&](comm::Communicator& group) {
    const float error = largest_error(group);
    const std::lock_guard lock(mutex);
    worst = std::max(worst, error);
  });
  std::printf("largest difference: %g\n", static_cast<double>(worst));
  return worst < 1e-5F ? 0 : 1;
}
