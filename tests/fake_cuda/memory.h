// SPDX-License-Identifier: Apache-2.0
// The allocations of the fake devices and of page-locked host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace droptest::fake_cuda {

enum class Place { kDevice, kPinned, kPageable };

/// Each allocation is between two canaries. Fresh memory is filled with NaN, and so is freed memory, which stays
/// reserved until no queued work can use it. Thread safety: none; callers have the runtime's lock.
class Memory {
 public:
  void* allocate(Place place, int device, std::size_t bytes);
  /// Frees `data`. Returns whether it was an allocation of that place. Ends the program if a canary was overwritten.
  bool free(Place place, void* data);

  /// The place of the range. Ends the program, naming `user`, if the range begins in an allocation and leaves it, or
  /// was freed.
  Place place_of(const void* data, std::size_t bytes, std::string_view user) const;
  /// Like place_of, and ends the program unless it is memory of a device.
  void check_device_range(const void* data, std::size_t bytes, std::string_view user) const;
  int device_of(const void* data) const;

  /// Ends the program if `user` has written outside of an allocation or into freed memory.
  void check_canaries(std::string_view user) const;
  /// Gives freed allocations back to the host: no work is queued.
  void forget_freed();

  std::size_t live_bytes(int device) const;
  std::size_t live_bytes() const;
  std::size_t live_count() const;

 private:
  struct Allocation {
    unsigned char* block = nullptr;  // canary, data, canary
    std::size_t bytes = 0;
    Place place = Place::kDevice;
    int device = 0;
    std::uint64_t number = 0;
    bool freed = false;
  };
  static std::string name(const Allocation& allocation);
  const Allocation* find(const void* data) const;
  static void check(const Allocation& allocation, std::string_view user, std::size_t freed_bytes);

  std::map<std::uintptr_t, Allocation> allocations_;  // the key is the address of the data
  std::uint64_t count_ = 0;
  bool any_freed_ = false;
};

}  // namespace droptest::fake_cuda
