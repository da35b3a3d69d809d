// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_libraries.h"

#include <dlfcn.h>

#include <cstddef>

#include "sim/error.h"

namespace droptest::comm {
namespace {

std::string dotted(std::size_t major, std::size_t minor, std::size_t patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

/// A function of a library that is found at run time; null where it is not found. Libraries are never closed: they keep
/// threads and handlers of their own.
template <class Function>
Function* function_of(const std::string& library, const char* name) {
  void* const handle = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  return reinterpret_cast<Function*>(::dlsym(handle, name));
}

std::optional<std::string> nccl_version() {
  auto* const get_version = function_of<int(int*)>("libnccl.so.2", "ncclGetVersion");
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0 || version < 10000) return std::nullopt;
  const auto number = static_cast<std::size_t>(version);  // 22809
  return dotted(number / 10000, number / 100 % 100, number % 100);
}

std::optional<std::string> cublaslt_version(const std::string& runtime_version) {
  const std::string major = runtime_version.substr(0, runtime_version.find('.'));
  auto* const get_version = function_of<std::size_t()>("libcublasLt.so." + major, "cublasLtGetVersion");
  if (get_version == nullptr) return std::nullopt;
  const std::size_t version = get_version();  // 130100; 120605 is 12.6.5
  return dotted(version / 10000, version / 100 % 100, version % 100);
}

std::optional<std::string> cudnn_version() {
  auto* const get_version = function_of<std::size_t()>("libcudnn.so.9", "cudnnGetVersion");
  if (get_version == nullptr) return std::nullopt;
  const std::size_t version = get_version();  // 91400
  return dotted(version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

std::optional<std::string> device_library_version(const DeviceSurvey& survey, std::string_view name) {
  if (!survey.built) return std::nullopt;
  if (name == "NCCL") return nccl_version();
  if (name == "cuBLASLt") return cublaslt_version(survey.runtime_version);
  DROPTEST_CHECK(name == "cuDNN", "version of " + std::string(name));
  return cudnn_version();
}

std::map<std::string, std::string> device_library_versions(const DeviceSurvey& survey) {
  std::map<std::string, std::string> versions;
  for (const char* name : {"NCCL", "cuBLASLt", "cuDNN"}) {
    if (const std::optional<std::string> version = device_library_version(survey, name)) versions[name] = *version;
  }
  return versions;
}

}  // namespace droptest::comm
