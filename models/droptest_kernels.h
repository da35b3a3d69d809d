/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of a shared object with kernels for droptest. docs/kernels.md explains it, with a whole example.
 *
 * The object exports droptest_kernels(). All functions may be called from several threads at once, each with arrays of
 * its own. They must not throw, exit or retain pointers, and results must depend only on the arguments. Strides and
 * sizes are numbers of elements. A function that fails writes a zero-terminated text of at most message_bytes bytes
 * into `message`, and returns a number other than 0.
 *
 * Versions. The first two members of droptest_kernel_library are the same in all versions. New members are only
 * appended, and struct_size tells which members the writer of a struct knows. Members of a table beyond its struct_size
 * count as absent; members of a call beyond its struct_size must not be read. A new meaning of a call has a new flag in
 * the table (`masks`, `features`); a table without the flag is never called with it. The version number is only raised
 * if that is not enough. */
#ifndef DROPTEST_KERNELS_H
#define DROPTEST_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DROPTEST_KERNELS_ABI_VERSION 1U

/* Element types; a table has the sum of those that it supports. */
#define DROPTEST_FLOAT32 1U
#define DROPTEST_FLOAT64 2U

/* Masks of attention; a table has the sum of those that it supports. Causal: row i sees the keys 0 to i. */
#define DROPTEST_MASK_CAUSAL 1U

/* One head of one sequence: rows of queries, keys and values [length, width]. */
typedef struct droptest_attention_shape {
  uint32_t struct_size;
  uint32_t element_type; /* element type of all arrays */
  uint32_t mask;         /* one DROPTEST_MASK flag */
  uint32_t reserved;     /* 0 */
  int64_t length;        /* at least 1 */
  int64_t width;         /* at least 1 */
  int64_t qkv_stride;    /* elements between successive rows of queries, keys or values, or of their gradients */
  int64_t output_stride; /* elements between successive rows of the output, or of its gradient */
  double scale;          /* factor of scores: 1 / sqrt(width) */
} droptest_attention_shape;

/* output = softmax(mask(scale queries keys')) values. */
typedef struct droptest_attention_forward {
  uint32_t struct_size;
  uint32_t reserved; /* 0 */
  const droptest_attention_shape* shape;
  const void* queries;
  const void* keys;
  const void* values;
  void* output;
  void* statistics; /* output, statistics_elems() elements: saved for the backward pass */
  void* scratch;    /* forward_scratch_elems() elements with any content */
} droptest_attention_forward;

/* Sets the gradients of queries, keys and values. */
typedef struct droptest_attention_backward {
  uint32_t struct_size;
  uint32_t reserved; /* 0 */
  const droptest_attention_shape* shape;
  const void* queries;
  const void* keys;
  const void* values;
  const void* output;     /* result of the forward pass */
  const void* statistics; /* result of the forward pass */
  const void* grad_output;
  void* grad_queries;
  void* grad_keys;
  void* grad_values;
  void* scratch; /* backward_scratch_elems() elements with any content */
} droptest_attention_backward;

/* Numbers of elements are at least 0, and depend only on length, width and element_type; the strides are 0 in these
 * calls. */
typedef struct droptest_attention_kernel {
  uint32_t struct_size;
  uint32_t element_types;
  uint32_t masks;
  uint32_t features; /* 0: none are defined yet */
  int64_t (*statistics_elems)(const droptest_attention_shape* shape);
  int64_t (*forward_scratch_elems)(const droptest_attention_shape* shape);
  int64_t (*backward_scratch_elems)(const droptest_attention_shape* shape);
  int (*forward)(const droptest_attention_forward* call, char* message, size_t message_bytes);
  int (*backward)(const droptest_attention_backward* call, char* message, size_t message_bytes);
} droptest_attention_kernel;

/* result = alpha op(a) op(b) + beta result; op() transposes or not. If beta is 0, the old result is not read.
 * Shapes: row-major, op(a) [rows, inner], op(b) [inner, columns], result [rows, columns]; all at least 1. */
typedef struct droptest_matmul {
  uint32_t struct_size;
  uint32_t element_type; /* element type of all matrices */
  int32_t transpose_a;   /* 1: a is stored [inner, rows] */
  int32_t transpose_b;   /* 1: b is stored [columns, inner] */
  int64_t rows;
  int64_t columns;
  int64_t inner;
  int64_t a_stride; /* elements between successive stored rows */
  int64_t b_stride;
  int64_t result_stride;
  double alpha;
  double beta;
  const void* a;
  const void* b;
  void* result;
} droptest_matmul;

typedef struct droptest_matmul_kernel {
  uint32_t struct_size;
  uint32_t element_types;
  int (*multiply)(const droptest_matmul* call, char* message, size_t message_bytes);
} droptest_matmul_kernel;

/* The kernels of a shared object. All that it points to lives as long as the object is loaded. */
typedef struct droptest_kernel_library {
  uint32_t abi_version; /* DROPTEST_KERNELS_ABI_VERSION of the header that it was compiled with */
  uint32_t struct_size;
  const char* name;                           /* name in records */
  const char* version;                        /* version in records */
  const droptest_attention_kernel* attention; /* null: the object has none */
  const droptest_matmul_kernel* matmul;       /* null: the object has none */
} droptest_kernel_library;

/* The symbol that the object exports. `abi_version` is the highest version that this droptest supports; it takes all
 * versions from 1 to that one. Returns the object's tables, of one of these versions. Null: the object has none. */
__attribute__((visibility("default"))) const droptest_kernel_library* droptest_kernels(uint32_t abi_version);

#ifdef __cplusplus
}
#endif

#endif
