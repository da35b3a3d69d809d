// SPDX-License-Identifier: Apache-2.0
// Operations on whole tensors, in host memory or in the order of a stream of their device.
#pragma once

#include "comm/tensor.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// The range `elements` of `data`.
Tensor slice(Tensor data, sim::ElementRange elements);
ConstTensor slice(ConstTensor data, sim::ElementRange elements);

/// Copies whole tensors of equal size; nothing if they are the same range.
void copy(ConstTensor from, Tensor to);

/// Sets all elements to zero.
void zero(Tensor data);

/// Sets all elements to the lowest value of the type (minus infinity if it has one), the neutral element of a maximum.
void set_lowest(Tensor data);

/// data /= divisor, in the type (in float for bfloat16 and float16): turns a sum into a mean. Throws: CheckError for
/// integers.
void divide(Tensor data, double divisor);

/// data *= factor, rounded to the type first (to float for bfloat16 and float16). Throws: CheckError for integers.
void scale(Tensor data, double factor);

/// Sets elements that are not finite to 0. Throws: CheckError for integers.
void zero_not_finite(Tensor data);

}  // namespace droptest::comm
