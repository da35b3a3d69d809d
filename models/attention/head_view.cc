// SPDX-License-Identifier: Apache-2.0
#include "models/attention/head_view.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "sim/error.h"

namespace droptest::models {
namespace {

constexpr std::array<std::string_view, 4> kBatchFirstAxes = {"batch", "tokens", "heads", "width"};
constexpr std::array<std::string_view, 4> kSequenceFirstAxes = {"tokens", "batch", "heads", "width"};

const std::array<std::string_view, 4>& axes_of(TokenLayout layout) {
  return layout == TokenLayout::kBatchFirst ? kBatchFirstAxes : kSequenceFirstAxes;
}

std::array<std::int64_t, 4> extents_of(const HeadShape& shape, TokenLayout layout) {
  if (layout == TokenLayout::kBatchFirst) return {shape.batch, shape.tokens, shape.heads, shape.width};
  return {shape.tokens, shape.batch, shape.heads, shape.width};
}

void check_extents(std::string_view tensor, const std::array<std::int64_t, 4>& got, const HeadShape& want,
                   TokenLayout layout) {
  const std::array<std::int64_t, 4> wanted = extents_of(want, layout);
  if (want.width < 1) {
    throw ConfigError(std::string(tensor) + ": axis 3 (width): got " + std::to_string(got[3]) + ", want at least 1");
  }
  const auto [differing, unused] = std::ranges::mismatch(got, wanted);
  if (differing == got.end()) return;
  const std::array<std::string_view, 4>& axes = axes_of(layout);
  const auto axis = static_cast<std::size_t>(differing - got.begin());
  std::string all;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    all += (i == 0 ? "[" : ", ") + std::string(axes[i]) + " " + std::to_string(wanted[i]);
  }
  const TokenLayout other = layout == TokenLayout::kBatchFirst ? TokenLayout::kSequenceFirst : TokenLayout::kBatchFirst;
  const std::string hint = got == extents_of(want, other)
                               ? std::string("; the shape is that of the layout ") +
                                     (other == TokenLayout::kBatchFirst ? "batch first" : "sequence first")
                               : std::string();
  throw ConfigError(std::string(tensor) + ": axis " + std::to_string(axis) + " (" + std::string(axes[axis]) +
                    "): got " + std::to_string(*differing) + ", want " + std::to_string(wanted[axis]) + " of " + all +
                    "]" + hint);
}

template <class T, class F>
void for_each_head(const HeadView<const T>& from, const HeadView<T>& to, const F& f) {
  DROPTEST_CHECK(from.shape == to.shape, "views of different shapes");
  for (std::int64_t b = 0; b < from.shape.batch; ++b) {
    for (std::int64_t t = 0; t < from.shape.tokens; ++t) {
      for (std::int64_t h = 0; h < from.shape.heads; ++h) f(from.at(b, t, h), to.at(b, t, h));
    }
  }
}

}  // namespace

template <class T>
HeadView<T> view_of(std::string_view tensor, std::span<T> elems, const HeadShape& shape, TokenLayout layout) {
  if (elems.size() != shape.elems()) {
    throw ConfigError(std::string(tensor) + ": got " + std::to_string(elems.size()) + " elements, want " +
                      std::to_string(shape.elems()) + ", of " + std::to_string(shape.batch) + " sequences of " +
                      std::to_string(shape.tokens) + " tokens with " + std::to_string(shape.heads) + " heads of " +
                      std::to_string(shape.width));
  }
  const std::int64_t row = shape.heads * shape.width;
  if (layout == TokenLayout::kBatchFirst) return {elems.data(), shape, shape.tokens * row, row, shape.width};
  return {elems.data(), shape, row, shape.batch * row, shape.width};
}

template <class T>
HeadView<T> view_of(std::string_view tensor, std::span<T> elems, const std::array<std::int64_t, 4>& extents,
                    const HeadShape& want, TokenLayout layout) {
  check_extents(tensor, extents, want, layout);
  return view_of(tensor, elems, want, layout);
}

void check_shape(std::string_view tensor, const HeadShape& got, const HeadShape& want, TokenLayout layout) {
  check_extents(tensor, extents_of(got, layout), want, layout);
}

template <class T>
void copy_heads(const HeadView<const T>& from, const HeadView<T>& to) {
  for_each_head(from, to, [&](const T* a, T* b) { std::copy_n(a, from.shape.width, b); });
}

template <class T>
void add_heads(const HeadView<const T>& from, const HeadView<T>& to) {
  for_each_head(from, to, [&](const T* a, T* b) {
    for (std::int64_t d = 0; d < from.shape.width; ++d) b[d] += a[d];
  });
}

#define DROPTEST_VIEW_OF(T)                                                                                          \
  template HeadView<T> view_of(std::string_view, std::span<T>, const HeadShape&, TokenLayout);                       \
  template HeadView<T> view_of(std::string_view, std::span<T>, const std::array<std::int64_t, 4>&, const HeadShape&, \
                               TokenLayout);
DROPTEST_VIEW_OF(float)
DROPTEST_VIEW_OF(double)
DROPTEST_VIEW_OF(const float)
DROPTEST_VIEW_OF(const double)
DROPTEST_VIEW_OF(std::byte)  // the element type of dry runs
DROPTEST_VIEW_OF(const std::byte)
#undef DROPTEST_VIEW_OF
template void copy_heads(const HeadView<const float>&, const HeadView<float>&);
template void copy_heads(const HeadView<const double>&, const HeadView<double>&);
template void add_heads(const HeadView<const float>&, const HeadView<float>&);
template void add_heads(const HeadView<const double>&, const HeadView<double>&);

}  // namespace droptest::models
