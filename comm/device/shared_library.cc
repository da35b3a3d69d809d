// SPDX-License-Identifier: Apache-2.0
#include "comm/device/shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include "sim/error.h"

namespace droptest::comm {

SharedLibrary::SharedLibrary(const std::vector<std::string>& names, std::string_view purpose) {
  std::string tried;
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    name_ = name;
    if (handle_ != nullptr) return;
    const char* why = dlerror();
    tried += (tried.empty() ? "" : "; ") + (why == nullptr ? name : std::string(why));
  }
  throw DeviceError(std::string(purpose) + " needs a library that cannot be loaded: " + tried +
                    "; is it installed, and its folder in LD_LIBRARY_PATH?");
}

std::string SharedLibrary::path() const {
  const link_map* map = nullptr;
  if (dlinfo(handle_, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 || map == nullptr) return name_;
  return map->l_name;
}

void* SharedLibrary::address(const char* name) const {
  void* found = dlsym(handle_, name);
  if (found == nullptr) throw DeviceError(name_ + " has no function " + name + "; a newer version is needed");
  return found;
}

}  // namespace droptest::comm
