// SPDX-License-Identifier: Apache-2.0
// Libraries that are loaded at their first call: CUDA's libraries have hundreds of megabytes, and most programs that
// can use them run on machines without a device.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace droptest::comm {

/// An open shared library; it stays open until the process ends.
class SharedLibrary {
 public:
  /// Tries the names in order, as dlopen() does: names without a slash are searched in the system's folders. Throws:
  /// DeviceError that names the tried files and the `purpose`.
  SharedLibrary(const std::vector<std::string>& names, std::string_view purpose);

  /// The file that the dynamic linker opened.
  std::string path() const;
  /// The handle that dlopen() gave, for libraries that look up functions themselves.
  void* handle() const { return handle_; }

  /// The function of that name. Throws: DeviceError if the library has no such function.
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
