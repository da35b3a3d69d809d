// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/matmul_bf16.h"

#include <dnnl.hpp>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "models/kernels/chunks.h"
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
    dnnl::primitive_attr attributes;
    if (adds) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    product.primitive = dnnl::matmul(
        dnnl::matmul::primitive_desc(dnnl::matmul::desc(product.a, product.b, product.result), attributes, engine_));
    return products_.emplace(key, std::move(product)).first->second;
  }

  const dnnl::engine& engine() const { return engine_; }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  std::map<Key, Product> products_;
};

namespace {

/// One chunk of a product, on the calling thread.
struct Part {
  const Product* product;
  const Bf16* a;
  const Bf16* b;
  float* result;
};

void execute(const dnnl::engine& engine, const Part& part) {
  dnnl::stream stream(engine);
  // oneDNN takes inputs through pointers to mutable memory and does not write them.
  part.product->primitive.execute(stream,
                                  {{DNNL_ARG_SRC, memory(part.product->a, engine, const_cast<Bf16*>(part.a))},
                                   {DNNL_ARG_WEIGHTS, memory(part.product->b, engine, const_cast<Bf16*>(part.b))},
                                   {DNNL_ARG_DST, memory(part.product->result, engine, part.result)}});
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
                     inner == (tb ? b.columns : b.rows) && inner > 0,
                 "bfloat16 matmul: inner extents " + std::to_string(inner) + " and " +
                     std::to_string(tb ? b.columns : b.rows) + ", result [" + std::to_string(result.rows) + ", " +
                     std::to_string(result.columns) + "]");
  if (result.rows == 0 || result.columns == 0) return;
  // The library's code is made before threads start, so that they only read what is kept.
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
  for_chunks(static_cast<std::int64_t>(parts.size()), 1, team,
             [&](std::int64_t part, std::int64_t) { execute(impl_->engine(), parts[static_cast<std::size_t>(part)]); });
}

}  // namespace droptest::models
