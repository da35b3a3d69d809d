// SPDX-License-Identifier: Apache-2.0
// exp as plain arithmetic: a loop over it vectorises, and the result does not depend on an element's place in the loop.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace droptest::models {

/// The constants of a number format.
template <class T>
struct ExpFormat;

template <>
struct ExpFormat<float> {
  using Bits = std::uint32_t;
  static constexpr int kDegree = 7;  ///< remainder of the series: (ln 2 / 2)^8 / 8! = 5e-9
  static constexpr int kMantissaBits = 23;
  static constexpr float kRound = 12582912.0F;  ///< 1.5 x 2^23: adding it rounds to an integer in the low bits
  static constexpr float kLn2High = 0.693145751953125F;
  static constexpr float kLn2Low = 1.428606765330187e-06F;
  static constexpr float kSmallest = -87.33654F;  ///< smaller arguments would give subnormal results
  static constexpr float kLargest = 88.02969F;    ///< 127 ln 2
  static constexpr Bits kBias = 127;
};

template <>
struct ExpFormat<double> {
  using Bits = std::uint64_t;
  static constexpr int kDegree = 13;  ///< (ln 2 / 2)^14 / 14! = 4e-18
  static constexpr int kMantissaBits = 52;
  static constexpr double kRound = 6755399441055744.0;  ///< 1.5 x 2^52
  static constexpr double kLn2High = 0.69314718036912381649;
  static constexpr double kLn2Low = 1.90821492927058770002e-10;
  static constexpr double kSmallest = -708.3964185322641;
  static constexpr double kLargest = 709.0895657128241;  ///< 1023 ln 2
  static constexpr Bits kBias = 1023;
};

/// 1/k! + r/(k+1)! + ... up to the term with 1/kDegree!, by Horner's rule. k is kTerm, and `inverse_factorial_scale` is
/// 1/k!.
template <class T, int kTerm>
inline T exp_series(T r, T inverse_factorial_scale) {
  if constexpr (kTerm == ExpFormat<T>::kDegree) {
    return inverse_factorial_scale;
  } else {
    constexpr T kNext = T(1) / T(kTerm + 1);
    return inverse_factorial_scale + r * exp_series<T, kTerm + 1>(r, inverse_factorial_scale * kNext);
  }
}

/// e^x to about an ulp: 0 instead of subnormal results, infinity above 127 ln 2 (double: 1023 ln 2), NaN for NaN.
template <class T>
inline T exp_plain(T x) {
  using Format = ExpFormat<T>;
  using Bits = typename Format::Bits;
  // x = n ln 2 + r with |r| <= ln 2 / 2; comparisons are written so that a NaN passes through them.
  T clamped = x < Format::kSmallest ? Format::kSmallest : x;
  clamped = clamped > Format::kLargest ? Format::kLargest : clamped;
  const T shifted = clamped * T(1.44269504088896340736) + Format::kRound;
  const T n = shifted - Format::kRound;
  const T r = (clamped - n * Format::kLn2High) - n * Format::kLn2Low;
  // The low bits of `shifted` hold n; the bits that overflow on the left are the format's own exponent.
  const Bits power = (std::bit_cast<Bits>(shifted) + Format::kBias) << Format::kMantissaBits;
  const T result = exp_series<T, 0>(r, T(1)) * std::bit_cast<T>(power);
  const T floored = x < Format::kSmallest ? T(0) : result;
  return x > Format::kLargest ? std::numeric_limits<T>::infinity() : floored;
}

}  // namespace droptest::models
