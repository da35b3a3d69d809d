// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/naive_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace droptest::benchmarks::naive {
namespace {

constexpr float kEpsilon = 1e-5F;
constexpr float kSqrtTwoOverPi = 0.7978845608F;
constexpr float kCubic = 0.044715F;

}  // namespace

void layernorm_forward(const Floats& input, const Floats& gain, const Floats& bias, Floats& output, Floats& mean,
                       Floats& inverse_deviation) {
  const std::size_t width = gain.size();
  for (std::size_t i = 0; i < mean.size(); ++i) {
    float sum = 0;
    for (std::size_t j = 0; j < width; ++j) sum += input[i * width + j];
    const float m = sum / static_cast<float>(width);
    float squares = 0;
    for (std::size_t j = 0; j < width; ++j) squares += (input[i * width + j] - m) * (input[i * width + j] - m);
    const float r = 1 / std::sqrt(squares / static_cast<float>(width) + kEpsilon);
    for (std::size_t j = 0; j < width; ++j) output[i * width + j] = (input[i * width + j] - m) * r * gain[j] + bias[j];
    mean[i] = m;
    inverse_deviation[i] = r;
  }
}

void residual_layernorm_forward(const Floats& residual, const Floats& branch, const Floats& branch_bias,
                                const Floats& gain, const Floats& bias, Floats& stream, Floats& output, Floats& mean,
                                Floats& inverse_deviation) {
  const std::size_t width = gain.size();
  for (std::size_t i = 0; i < stream.size(); i += width) {
    for (std::size_t j = 0; j < width; ++j) stream[i + j] = residual[i + j] + (branch[i + j] + branch_bias[j]);
  }
  naive::layernorm_forward(stream, gain, bias, output, mean, inverse_deviation);
}

void layernorm_backward(const Floats& grad_output, const Floats& input, const Floats& gain, const Floats& mean,
                        const Floats& inverse_deviation, Floats& grad_input, Floats& grad_gain, Floats& grad_bias) {
  const std::size_t width = gain.size();
  const float scale = 1 / static_cast<float>(width);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    float mean_d = 0;
    float mean_dn = 0;
    for (std::size_t j = 0; j < width; ++j) {
      const float dy = grad_output[i * width + j];
      const float n = (input[i * width + j] - mean[i]) * inverse_deviation[i];
      mean_d += dy * gain[j] * scale;
      mean_dn += dy * gain[j] * n * scale;
      grad_gain[j] += dy * n;
      grad_bias[j] += dy;
    }
    for (std::size_t j = 0; j < width; ++j) {
      const float n = (input[i * width + j] - mean[i]) * inverse_deviation[i];
      grad_input[i * width + j] += inverse_deviation[i] * (grad_output[i * width + j] * gain[j] - mean_d - n * mean_dn);
    }
  }
}

void bias_gelu_forward(const Floats& bias, Floats& values, Floats& output) {
  for (std::size_t i = 0; i < values.size(); i += bias.size()) {
    for (std::size_t j = 0; j < bias.size(); ++j) {
      const float x = values[i + j] + bias[j];
      const float t = std::tanh(kSqrtTwoOverPi * (x + kCubic * x * x * x));
      output[i + j] = 0.5F * x * (1 + t);
      values[i + j] = 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * kSqrtTwoOverPi * (1 + 3 * kCubic * x * x);
    }
  }
}

void bias_gelu_backward(const Floats& slopes, Floats& gradient, Floats& bias_gradient) {
  for (std::size_t i = 0; i < gradient.size(); i += bias_gradient.size()) {
    for (std::size_t j = 0; j < bias_gradient.size(); ++j) {
      gradient[i + j] *= slopes[i + j];
      bias_gradient[j] += gradient[i + j];
    }
  }
}

void fill_rows(const Floats& bias, Floats& rows_out) {
  for (std::size_t i = 0; i < rows_out.size(); i += bias.size()) {
    for (std::size_t j = 0; j < bias.size(); ++j) rows_out[i + j] = bias[j];
  }
}

void add_column_sums(const Floats& values, Floats& sums) {
  for (std::size_t i = 0; i < values.size(); i += sums.size()) {
    for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += values[i + j];
  }
}

void cross_entropy(Floats& logits, const Tokens& targets, Floats& largest, Floats& sums, Floats& predicted) {
  const std::size_t columns = logits.size() / targets.size();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    float* row = logits.data() + i * columns;
    largest[i] = *std::max_element(row, row + columns);
    predicted[i] = row[targets[i]] - largest[i];
    sums[i] = 0;
    for (std::size_t j = 0; j < columns; ++j) {
      row[j] = std::exp(row[j] - largest[i]);
      sums[i] += row[j];
    }
    for (std::size_t j = 0; j < columns; ++j) row[j] /= sums[i];
    row[targets[i]] -= 1;
  }
}

void embedding_forward(const Tokens& tokens, const Floats& table, Floats& output) {
  const std::size_t width = output.size() / tokens.size();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::size_t row = static_cast<std::size_t>(tokens[i]) * width;
    for (std::size_t j = 0; j < width; ++j) output[i * width + j] = table[row + j];
  }
}

void embedding_backward(const Tokens& tokens, const Floats& grad_output, Floats& grad_table) {
  const std::size_t width = grad_output.size() / tokens.size();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::size_t row = static_cast<std::size_t>(tokens[i]) * width;
    for (std::size_t j = 0; j < width; ++j) grad_table[row + j] += grad_output[i * width + j];
  }
}

void add_positions(const Floats& table, Floats& values) {
  for (std::size_t i = 0; i < values.size(); i += table.size()) {
    for (std::size_t j = 0; j < table.size(); ++j) values[i + j] += table[j];
  }
}

void positions_backward(const Floats& grad_values, Floats& grad_table) {
  for (std::size_t i = 0; i < grad_values.size(); i += grad_table.size()) {
    for (std::size_t j = 0; j < grad_table.size(); ++j) grad_table[j] += grad_values[i + j];
  }
}

void adamw_update(Floats& value, const Floats& gradient, Floats& first_moment, Floats& second_moment,
                  const models::AdamWStep& step) {
  const auto rate = static_cast<float>(step.learning_rate);
  const auto beta1 = static_cast<float>(step.beta1);
  const auto beta2 = static_cast<float>(step.beta2);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const float g = gradient[i] * static_cast<float>(step.gradient_scale);
    first_moment[i] = beta1 * first_moment[i] + (1 - beta1) * g;
    second_moment[i] = beta2 * second_moment[i] + (1 - beta2) * g * g;
    const float m = first_moment[i] / static_cast<float>(step.bias_correction1);
    const float v = second_moment[i] / static_cast<float>(step.bias_correction2);
    value[i] -= rate * (m / (std::sqrt(v) + static_cast<float>(step.epsilon)) +
                        static_cast<float>(step.weight_decay) * value[i]);
  }
}

void to_bf16(const Floats& input, std::vector<std::uint16_t>& output) {
  for (std::size_t i = 0; i < input.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(input[i]);
    output[i] = static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
    if (std::isnan(input[i])) output[i] = 0x7FC0U;
  }
}

namespace {

/// The offsets of one query or key in qkv and in the output.
struct Place {
  std::size_t q, k, v, output;
};

Place place_of(const models::AttentionShape& shape, std::int64_t head, std::int64_t row) {
  const std::int64_t part = shape.heads * shape.head_width;
  const std::int64_t line = head / shape.heads * shape.length + row;
  const std::int64_t column = head % shape.heads * shape.head_width;
  const auto q = static_cast<std::size_t>(line * 3 * part + column);
  const auto step = static_cast<std::size_t>(part);
  return {q, q + step, q + 2 * step, static_cast<std::size_t>(line * part + column)};
}

float dot(const float* a, const float* b, std::size_t count) {
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

void attention_forward(const Floats& qkv, const models::AttentionShape& shape, Floats& probabilities, Floats& output) {
  const auto width = static_cast<std::size_t>(shape.head_width);
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  std::fill(output.begin(), output.end(), 0.0F);
  for (std::int64_t head = 0; head < shape.batch * shape.heads; ++head) {
    for (std::int64_t i = 0; i < shape.length; ++i) {
      const Place query = place_of(shape, head, i);
      float* p = probabilities.data() + (head * shape.length + i) * shape.length;
      float sum = 0;
      for (std::int64_t j = 0; j <= i; ++j) {
        p[j] = std::exp(scale * dot(&qkv[query.q], &qkv[place_of(shape, head, j).k], width));
        sum += p[j];
      }
      for (std::int64_t j = 0; j <= i; ++j) {
        const Place key = place_of(shape, head, j);
        p[j] /= sum;
        for (std::size_t d = 0; d < width; ++d) output[query.output + d] += p[j] * qkv[key.v + d];
      }
    }
  }
}

void attention_backward(const Floats& grad_output, const Floats& qkv, const Floats& probabilities,
                        const models::AttentionShape& shape, Floats& grad_qkv) {
  const auto width = static_cast<std::size_t>(shape.head_width);
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  std::fill(grad_qkv.begin(), grad_qkv.end(), 0.0F);
  for (std::int64_t head = 0; head < shape.batch * shape.heads; ++head) {
    for (std::int64_t i = 0; i < shape.length; ++i) {
      const Place query = place_of(shape, head, i);
      const float* p = probabilities.data() + (head * shape.length + i) * shape.length;
      float inner = 0;
      for (std::int64_t j = 0; j <= i; ++j) {
        inner += p[j] * dot(&grad_output[query.output], &qkv[place_of(shape, head, j).v], width);
      }
      for (std::int64_t j = 0; j <= i; ++j) {
        const Place key = place_of(shape, head, j);
        const float ds = scale * p[j] * (dot(&grad_output[query.output], &qkv[key.v], width) - inner);
        for (std::size_t d = 0; d < width; ++d) {
          grad_qkv[query.q + d] += ds * qkv[key.k + d];
          grad_qkv[key.k + d] += ds * qkv[query.q + d];
          grad_qkv[key.v + d] += p[j] * grad_output[query.output + d];
        }
      }
    }
  }
}

}  // namespace droptest::benchmarks::naive
