// SPDX-License-Identifier: Apache-2.0
#include "models/host_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace droptest::models {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

}  // namespace

ZeroedMemory::ZeroedMemory(std::size_t bytes) {
  if (bytes == 0) return;
  const std::size_t page = bytes < 2 * kHugePageBytes ? kPageBytes : kHugePageBytes;
  if (bytes > std::numeric_limits<std::size_t>::max() - page) throw std::bad_alloc();
  const std::size_t whole_pages = (bytes + page - 1) / page * page;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(page, whole_pages)));
  if (data_ == nullptr) throw std::bad_alloc();
  // This is only a request: a system without huge pages uses small ones.
  if (page == kHugePageBytes) static_cast<void>(madvise(data_.get(), whole_pages, MADV_HUGEPAGE));
  std::memset(data_.get(), 0, whole_pages);
}

void ZeroedMemory::Free::operator()(std::byte* data) const { std::free(data); }

}  // namespace droptest::models
