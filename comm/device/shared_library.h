// SPDX-License-Identifier: Apache-2.0
// Libraries that are loaded when they are first called: CUDA's are hundreds of megabytes, and most programs that can
// use them run where there is no device.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace droptest::comm {

/// An open shared library; it stays open until the process ends.
class SharedLibrary {
 public:
  /// Tries the names in order, as dlopen() does: those without a slash are looked for in the system's folders.
  /// Throws: DeviceError that says what was tried, and what `purpose` needs it for.
  SharedLibrary(const std::vector<std::string>& names, std::string_view purpose);

  /// The function of that name. Throws: DeviceError where the library has none.
  template <class Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(address(name));
  }

 private:
  void* address(const char* name) const;

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace droptest::comm
