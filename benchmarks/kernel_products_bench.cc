// SPDX-License-Identifier: Apache-2.0
// A part of kernels_bench. It compares GEMMs with those of oneDNN on its own threads, and attention with only its
// GEMMs, which run head by head on the same team, without mask and softmax. Flop counts are those of unmasked GEMMs.
#include <dnnl.h>
#include <omp.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <utility>
#include <vector>

#include "benchmarks/kernel_shapes.h"
#include "benchmarks/naive_kernels.h"
#include "benchmarks/turns.h"
#include "models/kernels/attention.h"
#include "models/kernels/matmul.h"
#include "models/kernels/matmul_bf16.h"
#include "models/kernels/narrow_floats.h"

namespace droptest::benchmarks {
namespace {

using benchmark::State;
using models::Bf16;
using models::Team;
using models::Transpose;

/// result [rows, columns] = a [rows, inner] b [inner, columns].
struct Product {
  std::int64_t rows, columns, inner;
  double gigaflop() const { return 2e-9 * static_cast<double>(rows * columns) * static_cast<double>(inner); }
};

std::size_t elems(std::int64_t rows, std::int64_t columns) { return static_cast<std::size_t>(rows * columns); }

/// Ends the program if the library refuses a GEMM, because the parts of a team's loop must not throw.
void sgemm(char transpose_a, char transpose_b, const Product& p, const float* a, std::int64_t stride_a, const float* b,
           std::int64_t stride_b, float* result, std::int64_t stride) {
  if (dnnl_sgemm(transpose_a, transpose_b, p.rows, p.columns, p.inner, 1.0F, a, stride_a, b, stride_b, 0.0F, result,
                 stride) != dnnl_success) {
    std::fputs("dnnl_sgemm refused a product\n", stderr);
    std::abort();
  }
}

/// While this object lives, oneDNN uses that many of its own threads.
class LibraryThreads {
 public:
  explicit LibraryThreads(int threads) : previous_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~LibraryThreads() { omp_set_num_threads(previous_); }
  LibraryThreads(const LibraryThreads&) = delete;
  LibraryThreads& operator=(const LibraryThreads&) = delete;

 private:
  int previous_;
};

void matmul_float(State& state, const Product& p, int threads) {
  const Team team(threads);
  const Floats a = numbers(elems(p.rows, p.inner));
  const Floats b = numbers(elems(p.inner, p.columns), 0.5);
  Floats ours(elems(p.rows, p.columns));
  Floats theirs(ours.size());
  const auto kernel = [&] {
    const LibraryThreads guard(1);
    models::matmul<float>(Transpose::kNo, models::dense(a.data(), p.rows, p.inner), Transpose::kNo,
                          models::dense(b.data(), p.inner, p.columns), 1.0F, 0.0F,
                          models::dense(ours.data(), p.rows, p.columns), team);
  };
  const auto yardstick = [&] {
    const LibraryThreads guard(threads);
    sgemm('N', 'N', p, a.data(), p.inner, b.data(), p.columns, theirs.data(), p.columns);
  };
  kernel();
  yardstick();
  compare_in_turns(state, {kernel, yardstick, {}, "ratio_to_onednn", "gigaflops_per_second", p.gigaflop(), [&] {
                             return mismatch_of(ours, theirs);
                           }});
}

std::vector<Bf16> bf16_numbers(std::size_t count, double start) {
  std::vector<Bf16> rounded(count);
  models::to_narrow(numbers(count, start), 1.0F, std::span(rounded), 1);
  return rounded;
}

void matmul_bf16(State& state, const Product& p, int threads) {
  using dnnl::memory;
  const Team team(threads);
  std::vector<Bf16> a = bf16_numbers(elems(p.rows, p.inner), 0);
  std::vector<Bf16> b = bf16_numbers(elems(p.inner, p.columns), 0.5);
  Floats ours(elems(p.rows, p.columns));
  Floats theirs(ours.size());
  models::Bf16Matmul matmul;
  const auto kernel = [&] {
    const LibraryThreads guard(1);
    matmul(Transpose::kNo, models::dense<Bf16>(std::as_const(a).data(), p.rows, p.inner), Transpose::kNo,
           models::dense<Bf16>(std::as_const(b).data(), p.inner, p.columns), models::Bf16Matmul::Keep::kSet,
           models::dense(ours.data(), p.rows, p.columns), team);
  };
  // The GEMM is made for the number of threads on which it will run.
  const LibraryThreads guard(threads);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const memory::desc a_desc({p.rows, p.inner}, memory::data_type::bf16, memory::format_tag::ab);
  const memory::desc b_desc({p.inner, p.columns}, memory::data_type::bf16, memory::format_tag::ab);
  const memory::desc result_desc({p.rows, p.columns}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul primitive(dnnl::matmul::primitive_desc({a_desc, b_desc, result_desc}, engine));
  const memory a_memory(a_desc, engine, a.data());
  const memory b_memory(b_desc, engine, b.data());
  const memory result_memory(result_desc, engine, theirs.data());
  const auto yardstick = [&] {
    const LibraryThreads own(threads);
    dnnl::stream stream(engine);
    primitive.execute(stream, {{DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, b_memory}, {DNNL_ARG_DST, result_memory}});
    stream.wait();
  };
  kernel();
  yardstick();
  compare_in_turns(state, {kernel, yardstick, {}, "ratio_to_onednn", "gigaflops_per_second", p.gigaflop(), [&] {
                             return mismatch_of(ours, theirs);
                           }});
}

/// The data that attention reads and writes, with room for all scores of a head for each thread.
struct AttentionData {
  models::AttentionShape shape;
  Floats qkv, grad_output, statistics, scratch, output, grad_qkv, probabilities, scores;

  AttentionData(const KernelShapes& s, int threads)
      : shape{s.batch, s.length, s.heads, s.width / s.heads},
        qkv(numbers(elems(s.rows(), 3 * s.width))),
        grad_output(numbers(elems(s.rows(), s.width), 0.5)),
        statistics(models::attention_statistics_elems(shape)),
        scratch(models::attention_scratch_elems(shape, threads)),
        output(grad_output.size()),
        grad_qkv(qkv.size()),
        probabilities(elems(s.batch * s.heads, s.length * s.length)),
        scores(elems(2 * threads, s.length * s.length)) {}

  /// The GFLOP of `products` GEMMs [T, D] by [D, T] for each head.
  double gigaflop(int products) const {
    const Product one{shape.length, shape.length, shape.head_width};
    return products * static_cast<double>(shape.batch * shape.heads) * one.gigaflop();
  }
};

/// Calls products(offset of the head's queries in qkv, offset of its output rows, this worker's scores) for each head.
template <class Products>
void for_heads(AttentionData& data, const Team& team, const Products& products) {
  const LibraryThreads guard(1);
  const models::AttentionShape& s = data.shape;
  const std::int64_t part = s.heads * s.head_width;
  team.run(s.batch * s.heads, [&](Team::Worker worker, std::int64_t head) {
    const std::int64_t row = head / s.heads * s.length;
    const std::int64_t column = head % s.heads * s.head_width;
    products(row * 3 * part + column, row * part + column, data.scores.data() + 2 * worker * s.length * s.length);
  });
}

void attention_forward(State& state, const KernelShapes& shapes, int threads) {
  const Team team(threads);
  AttentionData data(shapes, threads);
  const models::AttentionShape& s = data.shape;
  const std::int64_t part = shapes.width;
  const auto kernel = [&] {
    const LibraryThreads guard(1);
    models::attention_forward<float>(data.qkv, s, data.statistics, data.output, data.scratch, team);
  };
  Floats expected(data.output.size());
  const auto naive = [&] { naive::attention_forward(data.qkv, s, data.probabilities, expected); };
  Floats product(data.output.size());
  const auto yardstick = [&] {
    for_heads(data, team, [&](std::int64_t in, std::int64_t out, float* scores) {
      const float* q = data.qkv.data() + in;
      sgemm('N', 'T', {s.length, s.length, s.head_width}, q, 3 * part, q + part, 3 * part, scores, s.length);
      sgemm('N', 'N', {s.length, s.head_width, s.length}, scores, s.length, q + 2 * part, 3 * part,
            product.data() + out, part);
    });
  };
  kernel();
  naive();
  compare_in_turns(state, {kernel, yardstick, naive, "ratio_to_products", "gigaflops_per_second", data.gigaflop(2),
                           [&] { return mismatch_of(data.output, expected); }});
}

void attention_backward(State& state, const KernelShapes& shapes, int threads) {
  const Team team(threads);
  AttentionData data(shapes, threads);
  const models::AttentionShape& s = data.shape;
  const std::int64_t part = shapes.width;
  const auto kernel = [&] {
    const LibraryThreads guard(1);
    models::attention_backward<float>(data.grad_output, data.qkv, data.statistics, s, data.grad_qkv, data.scratch,
                                      team);
  };
  Floats expected(data.qkv.size());
  const auto naive = [&] { naive::attention_backward(data.grad_output, data.qkv, data.probabilities, s, expected); };
  Floats product(data.qkv.size());
  const auto yardstick = [&] {
    for_heads(data, team, [&](std::int64_t in, std::int64_t out, float* p) {
      const Product to_scores{s.length, s.length, s.head_width};
      const Product to_rows{s.length, s.head_width, s.length};
      const float* q = data.qkv.data() + in;
      const float* dout = data.grad_output.data() + out;
      float* dq = product.data() + in;
      float* ds = p + s.length * s.length;
      sgemm('N', 'T', to_scores, q, 3 * part, q + part, 3 * part, p, s.length);
      sgemm('T', 'N', to_rows, p, s.length, dout, part, dq + 2 * part, 3 * part);
      sgemm('N', 'T', to_scores, dout, part, q + 2 * part, 3 * part, ds, s.length);
      sgemm('N', 'N', to_rows, ds, s.length, q + part, 3 * part, dq, 3 * part);
      sgemm('T', 'N', to_rows, ds, s.length, q, 3 * part, dq + part, 3 * part);
    });
  };
  {
    const LibraryThreads guard(1);
    models::attention_forward<float>(data.qkv, s, data.statistics, data.output, data.scratch, team);
  }
  Floats ignored(data.output.size());
  naive::attention_forward(data.qkv, s, data.probabilities, ignored);
  kernel();
  naive();
  compare_in_turns(state, {kernel, yardstick, naive, "ratio_to_products", "gigaflops_per_second", data.gigaflop(5),
                           [&] { return mismatch_of(data.grad_qkv, expected); }});
}

void float_qkv(State& state, const KernelShapes& s, int threads) {
  matmul_float(state, {s.rows(), 3 * s.width, s.width}, threads);
}
void float_fc(State& state, const KernelShapes& s, int threads) {
  matmul_float(state, {s.rows(), s.hidden(), s.width}, threads);
}
void bf16_qkv(State& state, const KernelShapes& s, int threads) {
  matmul_bf16(state, {s.rows(), 3 * s.width, s.width}, threads);
}
void bf16_fc(State& state, const KernelShapes& s, int threads) {
  matmul_bf16(state, {s.rows(), s.hidden(), s.width}, threads);
}

}  // namespace

void register_products(const KernelShapes& shapes, int threads) {
  register_kernel("attention_forward", shapes, threads, attention_forward);
  register_kernel("attention_backward", shapes, threads, attention_backward);
  register_kernel("matmul_qkv", shapes, threads, float_qkv);
  register_kernel("matmul_fc", shapes, threads, float_fc);
  if (!models::has_bf16_products()) return;
  register_kernel("bf16_matmul_qkv", shapes, threads, bf16_qkv);
  register_kernel("bf16_matmul_fc", shapes, threads, bf16_fc);
}

}  // namespace droptest::benchmarks
