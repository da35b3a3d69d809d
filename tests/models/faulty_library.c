/* SPDX-License-Identifier: Apache-2.0 */
/* Shared objects that droptest must refuse, or whose kernels fail: FAULT is one of those below. */
#include "droptest_kernels.h"

#include <stdio.h>

#define NO_SYMBOL 1
#define NULL_TABLES 2
#define OTHER_VERSION 3
#define SHORT_TABLES 4
#define NO_NAME 5
#define NO_ATTENTION 6
#define NULL_FUNCTION 7
#define DOUBLES_ALONE 8
#define NO_CAUSAL_MASK 9
#define NEGATIVE_SCRATCH 10
#define FAILING 11
#define LONG_MESSAGE 12
#define SHORT_ATTENTION 13

static int64_t elems(const droptest_attention_shape *shape) { return FAULT == NEGATIVE_SCRATCH ? -5 : shape->length; }

static int forward(const droptest_attention_forward *call, char *message, size_t message_bytes) {
  (void)call;
  if (FAULT == LONG_MESSAGE) {
    for (size_t i = 0; i < message_bytes; ++i) message[i] = 'x'; /* without an end */
    return 4;
  }
  snprintf(message, message_bytes, "out of %s", "luck");
  return 3;
}
static int backward(const droptest_attention_backward *call, char *message, size_t message_bytes) {
  (void)call;
  (void)message;
  (void)message_bytes;
  return -1;
}
static int multiply(const droptest_matmul *call, char *message, size_t message_bytes) {
  (void)call;
  snprintf(message, message_bytes, "no GEMM today");
  return 7;
}

static const droptest_attention_kernel kAttention = {
    .struct_size = FAULT == SHORT_ATTENTION ? 16 : sizeof(droptest_attention_kernel),
    .element_types = FAULT == DOUBLES_ALONE ? DROPTEST_FLOAT64 : DROPTEST_FLOAT32,
    .masks = FAULT == NO_CAUSAL_MASK ? 2 : DROPTEST_MASK_CAUSAL,
    .statistics_elems = elems,
    .forward_scratch_elems = elems,
    .backward_scratch_elems = elems,
    .forward = forward,
    .backward = FAULT == NULL_FUNCTION ? NULL : backward,
};

static const droptest_matmul_kernel kMatmul = {
    .struct_size = sizeof(droptest_matmul_kernel),
    .element_types = FAULT == DOUBLES_ALONE ? DROPTEST_FLOAT64 : DROPTEST_FLOAT32,
    .multiply = FAULT == NULL_FUNCTION ? NULL : multiply,
};

static const droptest_kernel_library kLibrary = {
    .abi_version = FAULT == OTHER_VERSION ? 7 : DROPTEST_KERNELS_ABI_VERSION,
    .struct_size = FAULT == SHORT_TABLES ? 8 : sizeof(droptest_kernel_library),
    .name = FAULT == NO_NAME ? NULL : "faulty",
    .version = "0.1",
    .attention = FAULT == NO_ATTENTION ? NULL : &kAttention,
    .matmul = FAULT == NO_ATTENTION ? NULL : &kMatmul,
};

#if FAULT == NO_SYMBOL
const droptest_kernel_library *other_name(uint32_t abi_version);
const droptest_kernel_library *other_name(uint32_t abi_version) {
#else
const droptest_kernel_library *droptest_kernels(uint32_t abi_version) {
#endif
  (void)abi_version;
  return FAULT == NULL_TABLES ? NULL : &kLibrary;
}
