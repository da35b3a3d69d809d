// SPDX-License-Identifier: Apache-2.0
// The element types in which the host computes.
#pragma once

#include <string>
#include <type_traits>

#include "comm/tensor.h"
#include "sim/error.h"

namespace droptest::models {

/// Calls visit(std::type_identity<T>()) with float or double.
template <class Visit>
void visit_host_floats(comm::ElementType type, const Visit& visit) {
  if (type == comm::ElementType::kFloat64) return visit(std::type_identity<double>());
  DROPTEST_CHECK(type == comm::ElementType::kFloat32,
                 "a kernel of the host for " + std::string(comm::element_type_name(type)));
  visit(std::type_identity<float>());
}

}  // namespace droptest::models
