// SPDX-License-Identifier: Apache-2.0
#include "api/foreign_memory.h"

namespace droptest::api {

void ForeignMemory::check(const droptest_memory* memory) {
  if (memory != nullptr && memory->on_device != 0) check_device(*memory);
}

void ForeignMemory::change(const droptest_memory* memory, comm::Tensor elements,
                           const std::function<void(comm::Tensor)>& change) {
  if (memory == nullptr || memory->on_device == 0) return change(elements);
  change_on_device(*memory, elements, change);
}

}  // namespace droptest::api
