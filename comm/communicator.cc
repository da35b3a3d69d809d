// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

#include "sim/error.h"

namespace droptest::comm {

std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return sizeof(float);
    case ElementType::kFloat64:
      return sizeof(double);
    case ElementType::kUint64:
      return sizeof(std::uint64_t);
  }
  DROPTEST_CHECK(false, "unknown element type");
}

std::vector<std::uint64_t> even_counts(std::uint64_t count_elems, int world_size) {
  DROPTEST_CHECK(world_size > 0, "world_size " + std::to_string(world_size));
  const auto parts = static_cast<std::uint64_t>(world_size);
  std::vector<std::uint64_t> counts(parts, count_elems / parts);
  for (std::uint64_t r = 0; r < count_elems % parts; ++r) ++counts[r];
  return counts;
}

}  // namespace droptest::comm
