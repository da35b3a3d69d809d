/* SPDX-License-Identifier: Apache-2.0 */
/* A shared object with attention and GEMMs for droptest, as plainly as they can be: the example of docs/kernels.md.
 * cc -shared -fPIC -O2 -I<folder of droptest_kernels.h> -o attention_library.so attention_library.c -lm */
#include "droptest_kernels.h"

#include <math.h>
#include <stdio.h>

/* Arrays of the caller's type are read and written as doubles. */
static double get(uint32_t type, const void *array, int64_t i) {
  return type == DROPTEST_FLOAT32 ? (double)((const float *)array)[i] : ((const double *)array)[i];
}
static void set(uint32_t type, void *array, int64_t i, double value) {
  if (type == DROPTEST_FLOAT32) {
    ((float *)array)[i] = (float)value;
  } else {
    ((double *)array)[i] = value;
  }
}

static double inner_product(uint32_t type, const void *a, int64_t a_first, const void *b, int64_t b_first, int64_t n) {
  double sum = 0;
  for (int64_t d = 0; d < n; ++d) sum += get(type, a, a_first + d) * get(type, b, b_first + d);
  return sum;
}

/* The log-sum-exp of each row is saved for the backward pass. */
static int64_t statistics_elems(const droptest_attention_shape *shape) { return shape->length; }
/* The probabilities of a row. */
static int64_t forward_scratch_elems(const droptest_attention_shape *shape) { return shape->length; }
static int64_t backward_scratch_elems(const droptest_attention_shape *shape) {
  (void)shape;
  return 0;
}

static double score(const droptest_attention_shape *s, const void *queries, const void *keys, int64_t row,
                    int64_t key) {
  return s->scale *
         inner_product(s->element_type, queries, row * s->qkv_stride, keys, key * s->qkv_stride, s->width);
}

static int forward(const droptest_attention_forward *call, char *message, size_t message_bytes) {
  const droptest_attention_shape *s = call->shape;
  const uint32_t type = s->element_type;
  if (s->mask != DROPTEST_MASK_CAUSAL) {
    snprintf(message, message_bytes, "got mask %u, want the causal one", (unsigned)s->mask);
    return 1;
  }
  for (int64_t row = 0; row < s->length; ++row) {
    double largest = -INFINITY;
    double sum = 0;
    for (int64_t key = 0; key <= row; ++key) largest = fmax(largest, score(s, call->queries, call->keys, row, key));
    for (int64_t key = 0; key <= row; ++key) {
      const double weight = exp(score(s, call->queries, call->keys, row, key) - largest);
      set(type, call->scratch, key, weight);
      sum += weight;
    }
    for (int64_t d = 0; d < s->width; ++d) {
      double output = 0;
      for (int64_t key = 0; key <= row; ++key) {
        output += get(type, call->scratch, key) / sum * get(type, call->values, key * s->qkv_stride + d);
      }
      set(type, call->output, row * s->output_stride + d, output);
    }
    set(type, call->statistics, row, largest + log(sum));
  }
  return 0;
}

static int backward(const droptest_attention_backward *call, char *message, size_t message_bytes) {
  const droptest_attention_shape *s = call->shape;
  const uint32_t type = s->element_type;
  const int64_t stride = s->qkv_stride;
  (void)message;
  (void)message_bytes;
  for (int64_t row = 0; row < s->length; ++row) {
    for (int64_t d = 0; d < s->width; ++d) {
      set(type, call->grad_queries, row * stride + d, 0);
      set(type, call->grad_keys, row * stride + d, 0);
      set(type, call->grad_values, row * stride + d, 0);
    }
  }
  for (int64_t row = 0; row < s->length; ++row) {
    const int64_t output_row = row * s->output_stride;
    /* The mean of the probabilities' gradients is the product of the output and its gradient. */
    const double mean = inner_product(type, call->grad_output, output_row, call->output, output_row, s->width);
    for (int64_t key = 0; key <= row; ++key) {
      const double p = exp(score(s, call->queries, call->keys, row, key) - get(type, call->statistics, row));
      const double grad_p =
          inner_product(type, call->grad_output, output_row, call->values, key * stride, s->width);
      const double grad_score = p * (grad_p - mean) * s->scale;
      for (int64_t d = 0; d < s->width; ++d) {
        const int64_t of_row = row * stride + d;
        const int64_t of_key = key * stride + d;
        set(type, call->grad_queries, of_row,
            get(type, call->grad_queries, of_row) + grad_score * get(type, call->keys, of_key));
        set(type, call->grad_keys, of_key,
            get(type, call->grad_keys, of_key) + grad_score * get(type, call->queries, of_row));
        set(type, call->grad_values, of_key,
            get(type, call->grad_values, of_key) + p * get(type, call->grad_output, output_row + d));
      }
    }
  }
  return 0;
}

static int multiply(const droptest_matmul *call, char *message, size_t message_bytes) {
  const uint32_t type = call->element_type;
  (void)message;
  (void)message_bytes;
  for (int64_t i = 0; i < call->rows; ++i) {
    for (int64_t j = 0; j < call->columns; ++j) {
      const int64_t at = i * call->result_stride + j;
      double sum = 0;
      for (int64_t k = 0; k < call->inner; ++k) {
        sum += get(type, call->a, call->transpose_a ? k * call->a_stride + i : i * call->a_stride + k) *
               get(type, call->b, call->transpose_b ? j * call->b_stride + k : k * call->b_stride + j);
      }
      set(type, call->result, at,
          call->alpha * sum + (call->beta == 0 ? 0 : call->beta * get(type, call->result, at)));
    }
  }
  return 0;
}

static const droptest_attention_kernel kAttention = {
    .struct_size = sizeof(droptest_attention_kernel),
    .element_types = DROPTEST_FLOAT32 | DROPTEST_FLOAT64,
    .masks = DROPTEST_MASK_CAUSAL,
    .statistics_elems = statistics_elems,
    .forward_scratch_elems = forward_scratch_elems,
    .backward_scratch_elems = backward_scratch_elems,
    .forward = forward,
    .backward = backward,
};

static const droptest_matmul_kernel kMatmul = {
    .struct_size = sizeof(droptest_matmul_kernel),
    .element_types = DROPTEST_FLOAT32 | DROPTEST_FLOAT64,
    .multiply = multiply,
};

static const droptest_kernel_library kLibrary = {
    .abi_version = DROPTEST_KERNELS_ABI_VERSION,
    .struct_size = sizeof(droptest_kernel_library),
    .name = "plain C",
    .version = "1.0",
    .attention = &kAttention,
    .matmul = &kMatmul,
};

const droptest_kernel_library *droptest_kernels(uint32_t abi_version) {
  return abi_version < DROPTEST_KERNELS_ABI_VERSION ? NULL : &kLibrary;
}
