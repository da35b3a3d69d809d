// SPDX-License-Identifier: Apache-2.0
// Tokens of several heads in memory, in any order of the axes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace droptest::models {

/// The order of the axes: [batch, tokens, heads, width] or [tokens, batch, heads, width].
enum class TokenLayout : std::uint8_t { kBatchFirst, kSequenceFirst };

/// The extents of queries, keys, values or an attention output, whatever their order.
struct HeadShape {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;  ///< of a head
  std::uint64_t elems() const { return static_cast<std::uint64_t>(batch * tokens * heads * width); }
  friend bool operator==(const HeadShape&, const HeadShape&) = default;
};

/// A borrowed tensor with an element for each (batch, token, head, place in the head). The elements of a head lie side
/// by side; the other axes have strides, so that a layout, a range of heads, and the queries in rows of packed queries,
/// keys and values are all views.
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
  /// Heads first, first + 1, ..., or tokens likewise. A view without elements may have no data.
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

/// The elements without gaps in that layout. Throws: ConfigError that names the tensor and its number of elements.
template <class T>
HeadView<T> view_of(std::string_view tensor, std::span<T> elems, const HeadShape& shape, TokenLayout layout);

/// A caller's tensor with these extents in the order of the layout. Throws: ConfigError that names the tensor, the axis
/// with another extent than `want`, the extent got and the one wanted, and says when the other layout would fit.
template <class T>
HeadView<T> view_of(std::string_view tensor, std::span<T> elems, const std::array<std::int64_t, 4>& extents,
                    const HeadShape& want, TokenLayout layout);

/// Throws: ConfigError as above.
void check_shape(std::string_view tensor, const HeadShape& got, const HeadShape& want, TokenLayout layout);

/// Copies elements; shapes are equal.
template <class T>
void copy_heads(const HeadView<const T>& from, const HeadView<T>& to);
/// Adds `from` to `to`.
template <class T>
void add_heads(const HeadView<const T>& from, const HeadView<T>& to);

}  // namespace droptest::models
