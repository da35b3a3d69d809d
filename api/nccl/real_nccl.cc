// SPDX-License-Identifier: Apache-2.0
#include "api/nccl/real_nccl.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <vector>

namespace droptest::nccl_shim {
namespace {

constexpr const char* kName = "/libnccl.so.2";

// PyTorch's packages have NCCL in a folder of its own; PyTorch is loaded before it calls NCCL.
int add_folder_of_torch(dl_phdr_info* info, std::size_t /*size*/, void* folders) {
  const std::string file = info->dlpi_name;
  if (file.find("/libtorch_cuda.so") != std::string::npos) {
    static_cast<std::vector<std::string>*>(folders)->push_back(file.substr(0, file.rfind('/')) +
                                                               "/../../nvidia/nccl/lib");
  }
  return 0;
}

std::vector<std::string> folders() {
  std::vector<std::string> found;
  if (const char* const path = std::getenv("LD_LIBRARY_PATH"); path != nullptr) {
    std::istringstream parts(path);
    for (std::string part; std::getline(parts, part, ':');) {
      if (!part.empty()) found.push_back(part);
    }
  }
  dl_iterate_phdr(add_folder_of_torch, &found);
  found.insert(found.end(), {DROPTEST_NCCL_FOLDER, "/usr/lib/x86_64-linux-gnu", "/usr/local/cuda/lib64", "/usr/lib64",
                             "/usr/local/lib", "/usr/lib"});
  return found;
}

bool is_this_library(const std::string& file) {
  Dl_info self{};
  struct stat own {};
  struct stat other {};
  return dladdr(reinterpret_cast<void*>(&is_this_library), &self) != 0 && stat(self.dli_fname, &own) == 0 &&
         stat(file.c_str(), &other) == 0 && own.st_ino == other.st_ino && own.st_dev == other.st_dev;
}

// Loads NCCL by a path with a slash: a plain name would find this library again, which has the same soname.
void* load() {
  std::vector<std::string> files;
  if (const char* const named = std::getenv("DROPTEST_NCCL_LIBRARY"); named != nullptr && *named != '\0') {
    files.emplace_back(named);
  } else {
    for (const std::string& folder : folders()) files.push_back(folder + kName);
  }
  std::string tried;
  for (const std::string& file : files) {
    if (is_this_library(file)) continue;
    if (void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) return handle;
    tried += "\n  " + std::string(dlerror());
  }
  std::fprintf(stderr, "droptest: NCCL's own library is not found; name its file in DROPTEST_NCCL_LIBRARY. Tried:%s\n",
               tried.c_str());
  std::abort();
}

thread_local int real_calls = 0;

}  // namespace

void* real_address(const char* name) {
  static void* const handle = load();
  return dlsym(handle, name);
}

bool within_real_call() { return real_calls > 0; }
RealCallScope::RealCallScope() { ++real_calls; }
RealCallScope::~RealCallScope() { --real_calls; }

}  // namespace droptest::nccl_shim
