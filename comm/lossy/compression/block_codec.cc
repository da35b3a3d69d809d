// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/compression/block_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "comm/visit_elements.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr double kDrawsPerUnit = 4294967296.0;  // 2^32

// Bits of an integer code; 0: the code is a 16-bit float.
int code_bits(CompressionKind kind) {
  return kind == CompressionKind::kInt8 ? 8 : kind == CompressionKind::kInt4 ? 4 : 0;
}

std::uint64_t code_bytes(int bits, std::uint64_t elems) { return (elems * static_cast<std::uint64_t>(bits) + 7) / 8; }

template <class T>
void visit_floats(ElementType type, const T& visit) {
  visit_elements(type, [&]<class E>(std::type_identity<E> element) {
    if constexpr (std::is_floating_point_v<E> || kIsNarrowFloat<E>) {
      visit(element);
    } else {
      DROPTEST_CHECK(false, "a code of integers");
    }
  });
}

// The scale is NaN if a value is not finite.
template <class E>
float scale_of(std::span<const E> values, int largest_code) {
  double largest = 0;
  for (const E value : values) {
    const double magnitude = std::abs(static_cast<double>(widened(value)));
    if (!std::isfinite(magnitude)) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, magnitude);
  }
  const double exact = largest / largest_code;
  auto scale = static_cast<float>(exact);
  if (static_cast<double>(scale) < exact) scale = std::nextafter(scale, std::numeric_limits<float>::infinity());
  return scale;
}

template <class E>
void encode_block(std::span<const E> values, int bits, sim::PhiloxEngine& draws, std::byte* to) {
  const int largest_code = (1 << (bits - 1)) - 1;
  const float scale = scale_of(values, largest_code);
  std::memcpy(to, &scale, sizeof(scale));
  std::byte* codes = to + sizeof(scale);
  std::fill_n(codes, code_bytes(bits, values.size()), std::byte{0});
  const bool is_zero = !(scale > 0);  // NaN, too
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double draw = static_cast<double>(draws()) / kDrawsPerUnit;
    int code = 0;
    if (!is_zero) {
      const double exact = static_cast<double>(widened(values[i])) / static_cast<double>(scale);
      const double below = std::floor(exact);
      code = static_cast<int>(below) + (draw < exact - below ? 1 : 0);
      code = std::clamp(code, -largest_code, largest_code);
    }
    const auto narrow = static_cast<unsigned>(code) & ((1U << static_cast<unsigned>(bits)) - 1U);
    const unsigned shift = bits == 4 && i % 2 == 1 ? 4 : 0;
    codes[i * static_cast<std::size_t>(bits) / 8] |= static_cast<std::byte>(narrow << shift);
  }
}

template <class E>
void decode_block(const std::byte* from, int bits, std::span<E> values) {
  float scale = 0;
  std::memcpy(&scale, from, sizeof(scale));
  const std::byte* codes = from + sizeof(scale);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto byte = static_cast<unsigned>(codes[i * static_cast<std::size_t>(bits) / 8]);
    int code = 0;
    if (bits == 8) {
      code = static_cast<std::int8_t>(byte);
    } else {
      const int nibble = static_cast<int>(i % 2 == 1 ? byte >> 4U : byte & 15U);
      code = nibble > 7 ? nibble - 16 : nibble;
    }
    using Wide = decltype(widened(E{}));
    values[i] = narrowed<E>(static_cast<Wide>(code) * static_cast<Wide>(scale));
  }
}

template <class Code, class E>
void encode_floats(std::span<const E> values, std::byte* to) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Code code = narrowed<Code>(static_cast<float>(widened(values[i])));
    std::memcpy(to + i * sizeof(code), &code, sizeof(code));
  }
}

template <class Code, class E>
void decode_floats(const std::byte* from, std::span<E> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Code code;
    std::memcpy(&code, from + i * sizeof(code), sizeof(code));
    using Wide = decltype(widened(E{}));
    values[i] = narrowed<E>(static_cast<Wide>(widened(code)));
  }
}

}  // namespace

std::span<const std::byte> BlockCodec::encode(ConstTensor values, sim::PhiloxEngine& draws) {
  message_.resize(coding_of(compression_, values.type).bytes(values.count_elems()));
  const int bits = code_bits(compression_.kind);
  visit_floats(values.type, [&]<class E>(std::type_identity<E>) {
    const std::span<const E> elems = values.as<E>();
    if (bits == 0) {
      return compression_.kind == CompressionKind::kFloat16 ? encode_floats<Fp16>(elems, message_.data())
                                                            : encode_floats<Bf16>(elems, message_.data());
    }
    std::byte* to = message_.data();
    for (std::size_t begin = 0; begin < elems.size(); begin += compression_.block_elems) {
      const std::size_t size = std::min<std::size_t>(compression_.block_elems, elems.size() - begin);
      encode_block(elems.subspan(begin, size), bits, draws, to);
      to += sizeof(float) + code_bytes(bits, size);
    }
  });
  return message_;
}

void BlockCodec::decode(std::span<const std::byte> message, Tensor values) const {
  DROPTEST_CHECK(message.size() == coding_of(compression_, values.type).bytes(values.count_elems()),
                 "a coded message of " + std::to_string(message.size()) + " bytes");
  const int bits = code_bits(compression_.kind);
  visit_floats(values.type, [&]<class E>(std::type_identity<E>) {
    const std::span<E> elems = values.as<E>();
    if (bits == 0) {
      return compression_.kind == CompressionKind::kFloat16 ? decode_floats<Fp16>(message.data(), elems)
                                                            : decode_floats<Bf16>(message.data(), elems);
    }
    const std::byte* from = message.data();
    for (std::size_t begin = 0; begin < elems.size(); begin += compression_.block_elems) {
      const std::size_t size = std::min<std::size_t>(compression_.block_elems, elems.size() - begin);
      decode_block(from, bits, elems.subspan(begin, size));
      from += sizeof(float) + code_bytes(bits, size);
    }
  });
}

}  // namespace droptest::comm
