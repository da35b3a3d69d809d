// SPDX-License-Identifier: Apache-2.0
// The simplest correct loops for the operations of models/kernels. kernels_bench uses them for comparison and as a
// check. Shapes and results are those of the kernels with the same names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/kernels/adamw.h"
#include "models/kernels/attention.h"

namespace droptest::benchmarks::naive {

using Floats = std::vector<float>;
using Tokens = std::vector<std::int32_t>;

void layernorm_forward(const Floats& input, const Floats& gain, const Floats& bias, Floats& output, Floats& mean,
                       Floats& inverse_deviation);
void residual_layernorm_forward(const Floats& residual, const Floats& branch, const Floats& branch_bias,
                                const Floats& gain, const Floats& bias, Floats& stream, Floats& output, Floats& mean,
                                Floats& inverse_deviation);
void layernorm_backward(const Floats& grad_output, const Floats& input, const Floats& gain, const Floats& mean,
                        const Floats& inverse_deviation, Floats& grad_input, Floats& grad_gain, Floats& grad_bias);
void bias_gelu_forward(const Floats& bias, Floats& values, Floats& output);
void bias_gelu_backward(const Floats& slopes, Floats& gradient, Floats& bias_gradient);
void fill_rows(const Floats& bias, Floats& rows_out);
void add_column_sums(const Floats& values, Floats& sums);
/// Replaces the logits by the gradient of each row's loss with respect to them.
void cross_entropy(Floats& logits, const Tokens& targets, Floats& largest, Floats& sums, Floats& predicted);
void embedding_forward(const Tokens& tokens, const Floats& table, Floats& output);
void embedding_backward(const Tokens& tokens, const Floats& grad_output, Floats& grad_table);
void add_positions(const Floats& table, Floats& values);
void positions_backward(const Floats& grad_values, Floats& grad_table);
void adamw_update(Floats& value, const Floats& gradient, Floats& first_moment, Floats& second_moment,
                  const models::AdamWStep& step);
void to_bf16(const Floats& input, std::vector<std::uint16_t>& output);
/// Also stores each row's probabilities: [B, NH, T, T].
void attention_forward(const Floats& qkv, const models::AttentionShape& shape, Floats& probabilities, Floats& output);
void attention_backward(const Floats& grad_output, const Floats& qkv, const Floats& probabilities,
                        const models::AttentionShape& shape, Floats& grad_qkv);

}  // namespace droptest::benchmarks::naive
