// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "tests/fake_cuda/failure.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace droptest::fake_cuda {
namespace {

constexpr std::size_t kCanaryBytes = 256;  // also the alignment of the data
constexpr unsigned char kFresh = 0xFF;
constexpr unsigned char kFreed = 0xFE;
constexpr std::size_t kFreedBytesOften = 4096;  // looked at after each kernel; the others before they are given back
// Read as bfloat16 or float, both fills are NaN or huge; the canary is NaN: 0xC5 at even addresses, 0xFF at odd ones.
constexpr auto kCanaries = [] {
  std::array<unsigned char, kCanaryBytes + 1> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = i % 2 == 0 ? 0xC5 : 0xFF;
  return bytes;
}();

const unsigned char* canary_at(const unsigned char* address) {
  return kCanaries.data() + (reinterpret_cast<std::uintptr_t>(address) & 1U);
}

void put_canary(unsigned char* address) { std::memcpy(address, canary_at(address), kCanaryBytes); }

/// The index of the first changed byte of a canary; kCanaryBytes: no byte changed.
std::size_t first_difference(const unsigned char* address) {
  const unsigned char* canary = canary_at(address);
  if (std::memcmp(address, canary, kCanaryBytes) == 0) return kCanaryBytes;
  return static_cast<std::size_t>(std::mismatch(address, address + kCanaryBytes, canary).first - address);
}

bool are_all(unsigned char value, const unsigned char* data, std::size_t bytes) {
  return bytes == 0 || (data[0] == value && std::memcmp(data, data + 1, bytes - 1) == 0);
}

std::size_t block_bytes(std::size_t bytes) {
  return (bytes + kCanaryBytes - 1) / kCanaryBytes * kCanaryBytes + 2 * kCanaryBytes;
}

}  // namespace

std::string Memory::name(const Allocation& allocation) {
  return (allocation.place == Place::kDevice ? "allocation " : "page-locked allocation ") +
         std::to_string(allocation.number) + " (" + std::to_string(allocation.bytes) + " bytes" +
         (allocation.place == Place::kDevice ? " on device " + std::to_string(allocation.device) : "") + ")";
}

void* Memory::allocate(Place place, int device, std::size_t bytes) {
  Allocation allocation;
  allocation.block = static_cast<unsigned char*>(std::aligned_alloc(kCanaryBytes, block_bytes(bytes)));
  if (allocation.block == nullptr) return nullptr;
  allocation.bytes = bytes;
  allocation.place = place;
  allocation.device = device;
  allocation.number = count_++;
  unsigned char* data = allocation.block + kCanaryBytes;
  put_canary(allocation.block);
  std::memset(data, computes_by_default() ? kFresh : 0, bytes);
  put_canary(data + bytes);
  allocations_.emplace(reinterpret_cast<std::uintptr_t>(data), allocation);
  return data;
}

bool Memory::free(Place place, void* data) {
  const auto found = allocations_.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == allocations_.end() || found->second.place != place) return false;
  Allocation& allocation = found->second;
  if (allocation.freed) fail(name(allocation) + " is freed twice");
  check(allocation, "at its free", 0);
  std::memset(data, kFreed, allocation.bytes);
  allocation.freed = true;
  any_freed_ = true;
  return true;
}

const Memory::Allocation* Memory::find(const void* data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return nullptr;
  --after;
  return address < after->first + after->second.bytes + kCanaryBytes ? &after->second : nullptr;
}

Place Memory::place_of(const void* data, std::size_t bytes, std::string_view user) const {
  const Allocation* allocation = find(data);
  if (allocation == nullptr) return Place::kPageable;
  if (allocation->freed) fail(std::string(user) + " uses " + name(*allocation) + " after its free");
  const std::size_t first =
      static_cast<std::size_t>(static_cast<const unsigned char*>(data) - allocation->block) - kCanaryBytes;
  if (first > allocation->bytes || bytes > allocation->bytes - first) {
    fail(std::string(user) + " uses bytes " + std::to_string(first) + " to " + std::to_string(first + bytes) + " of " +
         name(*allocation));
  }
  return allocation->place;
}

void Memory::check_device_range(const void* data, std::size_t bytes, std::string_view user) const {
  if (bytes > 0 && place_of(data, bytes, user) != Place::kDevice) {
    fail(std::string(user) + " uses memory that is not a device's");
  }
}

int Memory::device_of(const void* data) const {
  const Allocation* allocation = find(data);
  return allocation == nullptr ? -1 : allocation->device;
}

void Memory::check(const Allocation& allocation, std::string_view user, std::size_t freed_bytes) {
  const unsigned char* data = allocation.block + kCanaryBytes;
  if (first_difference(allocation.block) < kCanaryBytes) {
    fail(std::string(user) + ": bytes before " + name(allocation) + " were overwritten");
  }
  if (const std::size_t at = first_difference(data + allocation.bytes); at < kCanaryBytes) {
    fail(std::string(user) + ": bytes behind " + name(allocation) + " were overwritten, from " + std::to_string(at) +
         " behind its end");
  }
  if (allocation.freed && !are_all(kFreed, data, std::min(allocation.bytes, freed_bytes))) {
    fail(std::string(user) + ": " + name(allocation) + " was written to after its free");
  }
}

void Memory::check_canaries(std::string_view user) const {
  for (const auto& [address, allocation] : allocations_) check(allocation, user, kFreedBytesOften);
}

void Memory::forget_freed() {
  if (!any_freed_) return;
  for (auto entry = allocations_.begin(); entry != allocations_.end();) {
    if (!entry->second.freed) {
      ++entry;
      continue;
    }
    check(entry->second, "after the last queued work", entry->second.bytes);
    std::free(entry->second.block);
    entry = allocations_.erase(entry);
  }
  any_freed_ = false;
}

std::size_t Memory::live_bytes(int device) const {
  std::size_t bytes = 0;
  for (const auto& [address, allocation] : allocations_) {
    if (!allocation.freed && allocation.place == Place::kDevice && allocation.device == device) {
      bytes += allocation.bytes;
    }
  }
  return bytes;
}

std::size_t Memory::live_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [address, allocation] : allocations_) bytes += allocation.freed ? 0 : allocation.bytes;
  return bytes;
}

std::size_t Memory::live_count() const {
  std::size_t count = 0;
  for (const auto& [address, allocation] : allocations_) count += allocation.freed ? 0 : 1;
  return count;
}

}  // namespace droptest::fake_cuda
