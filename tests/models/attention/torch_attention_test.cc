// SPDX-License-Identifier: Apache-2.0
// Attention equals PyTorch's for every mask and layout (scripts/make_sequence_vectors.py).
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "models/attention/sequence_attention.h"
#include "models/files/safetensors.h"
#include "tests/models/attention/dense_attention.h"

namespace droptest::models::torch_attention_test {
namespace {

StoredTensors read_vectors() {
  const std::string path = DROPTEST_VECTORS "/sequence_attention.safetensors";
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  return parse_safetensors(std::as_bytes(std::span(content)), path);
}

Doubles doubles(const StoredTensor& tensor) {
  Doubles values(tensor.bytes.size() / sizeof(double));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

TEST(TorchVectors, HoldForEveryMaskAndLayout) {
  const StoredTensors vectors = read_vectors();
  const HeadShape shape{2, 7, 2, 3};
  const std::vector<std::int64_t> positions = {0, 1, 2, 3, 4, 5, 6};
  const SequenceParts parts = SequenceParts::even(7, 1);
  std::size_t compared = 0;
  for (const std::vector<MaskKind>& kinds : all_mask_kinds()) {
    const TestMask mask(kinds, 2, 7);
    for (const TokenLayout layout : {TokenLayout::kBatchFirst, TokenLayout::kSequenceFirst}) {
      const auto input = [&](std::uint64_t stream) {
        return WholeTensor(shape, stream).part<double>(positions, 0, shape.heads, layout);
      };
      const auto view = [&](const Doubles& elems) {
        return view_of("t", std::span<const double>(elems), shape, layout);
      };
      const auto room = [&](Doubles& elems) {
        elems.resize(shape.elems());
        return view_of("t", std::span(elems), shape, layout);
      };
      const Doubles q = input(1);
      const Doubles k = input(2);
      const Doubles v = input(3);
      const Doubles dout = input(4);
      Doubles output, dq, dk, dv;
      SequenceAttention<double> attention(nullptr, {1, 1}, shape.heads);
      SavedAttention<double> saved;
      const AttentionMask of_test = mask.mask();
      attention.forward({parts, of_test}, view(q), view(k), view(v), room(output), saved, 1);
      attention.backward({parts, of_test}, view(dout), saved, {room(dq), room(dk), room(dv)}, 1);
      const std::string prefix =
          mask_name(kinds) + (layout == TokenLayout::kBatchFirst ? "/batch_first/" : "/sequence_first/");
      const auto difference = [&](const Doubles& got, const std::string& name) {
        ++compared;
        return largest_difference(got, doubles(vectors.at(prefix + name)));
      };
      EXPECT_LE(difference(output, "output"), 1e-14) << prefix;
      EXPECT_LE(difference(saved.log_sum_exp, "log_sum_exp"), 1e-14) << prefix;
      EXPECT_LE(difference(dq, "grad_queries"), 1e-14) << prefix;
      EXPECT_LE(difference(dk, "grad_keys"), 1e-14) << prefix;
      EXPECT_LE(difference(dv, "grad_values"), 1e-14) << prefix;
    }
  }
  EXPECT_EQ(compared, vectors.size());
}

}  // namespace
}  // namespace droptest::models::torch_attention_test
