// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_libraries.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "comm/device/shared_library.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr const char* kCudnn = "libcudnn.so.9";

std::string dotted(std::size_t major, std::size_t minor, std::size_t patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

/// A function of a library that is found at run time; null if it is not found. Libraries are never closed: they keep
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
  try {
    const std::size_t version =
        SharedLibrary(cudnn_names(), "cuDNN").function<std::size_t()>("cudnnGetVersion")();  // 91400
    return dotted(version / 10000, version / 100 % 100, version % 100);
  } catch (const DeviceError&) {
    return std::nullopt;
  }
}

/// Adds the cuDNN of each Python with packages below `prefix`/lib.
void add_python_packages(const std::filesystem::path& prefix, std::vector<std::string>& names) {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(prefix / "lib", error), end; !error && at != end; at.increment(error)) {
    if (!at->path().filename().string().starts_with("python")) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      const std::filesystem::path file = at->path() / packages / "nvidia/cudnn/lib" / kCudnn;
      std::error_code ignored;
      if (std::filesystem::exists(file, ignored)) found.push_back(file.string());
    }
  }
  std::sort(found.begin(), found.end());
  names.insert(names.end(), found.begin(), found.end());
}

}  // namespace

std::vector<std::string> cudnn_names() {
  std::vector<std::string> names = {kCudnn};
  if (const std::string folder = DROPTEST_CUDA_LIBRARIES; !folder.empty()) names.push_back(folder + "/" + kCudnn);
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* const prefix = std::getenv(variable);
    if (prefix == nullptr) continue;
    names.push_back(std::string(prefix) + "/lib/" + kCudnn);
    add_python_packages(prefix, names);
  }
  for (const char* prefix : {"/usr/local", "/usr"}) add_python_packages(prefix, names);
  return names;
}

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
