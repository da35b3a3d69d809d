// SPDX-License-Identifier: Apache-2.0
// Views of tensors of tokens and heads, with any order of the axes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace droptest::models {

/// The order of the axes: [batch, tokens, heads, width] or [tokens, batch, heads, width].
enum class TokenLayout : std::uint8_t { kBatchFirst, kSequenceFirst };

/// The extents of queries, keys, values or an attention output, for any order of the axes.
struct HeadShape {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;  ///< elements of one head of a token
  std::uint64_t elems() const { return static_cast<std::uint64_t>(batch * tokens * heads * width); }
  friend bool operator==(const HeadShape&, const HeadShape&) = default;
};

/// A borrowed tensor with an element for each (batch, token, head, place in the head). The elements of a head are
/// contiguous, and the other axes have strides. So both layouts, a range of heads, and the queries in rows of packed
/// queries, keys and values are all views.
template <class T>
struct HeadView {
  T* data = nullptr;
  HeadShape shape;
  std::int64_t batch_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  T* at(std::int64_t batch, std::int64_t token, std::int64_t head) const {
    return data + batch * batch_stride + token * token_stride + head * head_stride;
  }
  /// The view of a range of heads, or of tokens, that begins with number `first`. Data may be null if there are no
  /// elements.
  HeadView heads(std::int64_t first, std::int64_t count) const {
    return part(first * head_stride, {shape.batch, shape.tokens, count, shape.width});
  }
  HeadView tokens(std::int64_t first, std::int64_t count) const {
    return part(first * token_stride, {shape.batch, count, shape.heads, shape.width});
  }
  operator HeadView<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {data, shape, batch_stride, token_stride, head_stride};
  }

 private:
  HeadView part(std::int64_t offset, const HeadShape& of_part) const {
    return {data == nullptr ? nullptr : data + offset, of_part, batch_stride, token_stride, head_stride};
  }
};

/// A view of elements without gaps in that layout. Throws: ConfigError that names the tensor and its number of
/// elements.
template <class T>
HeadView<T> view_of(std::string_view tensor, std::span<T> elems, const HeadShape& shape, TokenLayout layout);

/// A view of a caller's tensor; `extents` are in the order of the layout. Throws: ConfigError if an extent differs from
/// `want`. The error names the tensor, the axis and both extents, and says if the other layout would fit.
template <class T>
HeadView<T> view_of(std::string_view tensor, std::span<T> elems, const std::array<std::int64_t, 4>& extents,
                    const HeadShape& want, TokenLayout layout);

/// Throws: ConfigError that names the tensor, the axis and both extents, unless the shapes are equal.
void check_shape(std::string_view tensor, const HeadShape& got, const HeadShape& want, TokenLayout layout);

/// Copies `from` to `to`. Shapes: equal.
template <class T>
void copy_heads(const HeadView<const T>& from, const HeadView<T>& to);
/// Adds `from` to `to`. Shapes: equal.
template <class T>
void add_heads(const HeadView<const T>& from, const HeadView<T>& to);

}  // namespace droptest::models
