// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/matmul_bf16.h"

#include <algorithm>
#include <cstddef>
#include <dnnl.hpp>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "models/host_buffer.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using dnnl::memory;

/// A matrix without its data.
using Extents = std::tuple<bool, std::int64_t, std::int64_t, std::int64_t>;
using Key = std::tuple<Extents, Extents, Extents, bool>;

template <class M>
Extents extents(bool transposed, const M& m) {
  return {transposed, m.rows, m.columns, m.stride};
}

memory::desc description(const Extents& extents, memory::data_type type) {
  const auto& [transposed, rows, columns, stride] = extents;
  if (transposed) return {memory::dims{columns, rows}, type, memory::dims{1, stride}};
  return {memory::dims{rows, columns}, type, memory::dims{stride, 1}};
}

struct Product {
  dnnl::matmul primitive;
  memory::desc a;
  memory::desc b;
  memory::desc result;
  memory::desc scratch;
};

}  // namespace

class Bf16Matmul::Impl {
 public:
  const Product& product_of(const Key& key) {
    const auto found = products_.find(key);
    if (found != products_.end()) return found->second;
    const auto& [a, b, result, adds] = key;
    Product product;
    product.a = description(a, memory::data_type::bf16);
    product.b = description(b, memory::data_type::bf16);
    product.result = description(result, memory::data_type::f32);
    // The library's own working memory is not safe if several threads run the same GEMM.
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (adds) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(product.a, product.b, product.result), attributes,
                                              engine_);
    product.primitive = dnnl::matmul(chosen);
    product.scratch = chosen.scratchpad_desc();
    scratch_bytes_ = std::max(scratch_bytes_, product.scratch.get_size());
    return products_.emplace(key, std::move(product)).first->second;
  }

  const dnnl::engine& engine() const { return engine_; }

  /// Working memory for each thread of a team, enough for every GEMM so far.
  void make_room(int threads) {
    if (scratch_.size() < static_cast<std::size_t>(threads)) scratch_.resize(static_cast<std::size_t>(threads));
    for (HostBuffer<std::byte>& own : scratch_) {
      if (own.elems().size() < scratch_bytes_) own = HostBuffer<std::byte>(scratch_bytes_);
    }
  }
  std::byte* scratch_of(Team::Worker worker) { return scratch_[static_cast<std::size_t>(worker)].elems().data(); }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  std::map<Key, Product> products_;
  std::size_t scratch_bytes_ = 0;
  std::vector<HostBuffer<std::byte>> scratch_;
};

namespace {

/// One chunk of a GEMM, on the calling thread.
struct Part {
  const Product* product;
  const Bf16* a;
  const Bf16* b;
  float* result;
};

void execute(const dnnl::engine& engine, const Part& part, std::byte* scratch) {
  dnnl::stream stream(engine);
  // oneDNN takes inputs through pointers to mutable memory and does not write them.
  part.product->primitive.execute(stream,
                                  {{DNNL_ARG_SRC, memory(part.product->a, engine, const_cast<Bf16*>(part.a))},
                                   {DNNL_ARG_WEIGHTS, memory(part.product->b, engine, const_cast<Bf16*>(part.b))},
                                   {DNNL_ARG_DST, memory(part.product->result, engine, part.result)},
                                   {DNNL_ARG_SCRATCHPAD, memory(part.product->scratch, engine, scratch)}});
  stream.wait();
}

}  // namespace

Bf16Matmul::Bf16Matmul() : impl_(std::make_unique<Impl>()) {}
Bf16Matmul::~Bf16Matmul() = default;

void Bf16Matmul::operator()(Transpose transpose_a, const ConstMatrix<Bf16>& a, Transpose transpose_b,
                            const ConstMatrix<Bf16>& b, Keep keep, const Matrix<float>& result, const Team& team) {
  const bool ta = transpose_a == Transpose::kYes;
  const bool tb = transpose_b == Transpose::kYes;
  const std::int64_t inner = ta ? a.rows : a.columns;
  DROPTEST_CHECK((ta ? a.columns : a.rows) == result.rows && (tb ? b.rows : b.columns) == result.columns &&
                     inner == (tb ? b.columns : b.rows),
                 "bfloat16 matmul: inner extents " + std::to_string(inner) + " and " +
                     std::to_string(tb ? b.columns : b.rows) + ", result [" + std::to_string(result.rows) + ", " +
                     std::to_string(result.columns) + "]");
  if (result.rows == 0 || result.columns == 0) return;
  if (inner == 0) {
    for (std::int64_t i = 0; keep == Keep::kSet && i < result.rows; ++i) {
      std::fill_n(result.data + i * result.stride, result.columns, 0.0F);
    }
    return;
  }
  // The code is generated before the threads start, so that they only read it.
  std::vector<Part> parts;
  const bool cuts_rows = result.rows >= result.columns;
  const std::int64_t items = cuts_rows ? result.rows : result.columns;
  const std::int64_t chunk = product_chunk(items);
  for (std::int64_t begin = 0; begin < items; begin += chunk) {
    const std::int64_t count = std::min(chunk, items - begin);
    ConstMatrix<Bf16> part_a = a;
    ConstMatrix<Bf16> part_b = b;
    Matrix<float> part = result;
    if (cuts_rows) {
      part_a.data += ta ? begin : begin * a.stride;
      (ta ? part_a.columns : part_a.rows) = count;
      part.data += begin * result.stride;
      part.rows = count;
    } else {
      part_b.data += tb ? begin * b.stride : begin;
      (tb ? part_b.rows : part_b.columns) = count;
      part.data += begin;
      part.columns = count;
    }
    const Product& product =
        impl_->product_of({extents(ta, part_a), extents(tb, part_b), extents(false, part), keep == Keep::kAdd});
    parts.push_back({&product, part_a.data, part_b.data, part.data});
  }
  impl_->make_room(team.threads());
  team.run(static_cast<std::int64_t>(parts.size()), [&](Team::Worker worker, std::int64_t part) {
    execute(impl_->engine(), parts[static_cast<std::size_t>(part)], impl_->scratch_of(worker));
  });
}

}  // namespace droptest::models
