// SPDX-License-Identifier: Apache-2.0
// Kernels of a shared object with the C interface of models/droptest_kernels.h.
#pragma once

#include <memory>
#include <string>

#include "models/kernels/attention_kernel.h"
#include "models/kernels/matmul_kernel.h"

struct droptest_kernel_library;

namespace droptest::models {

/// A loaded shared object. Its version and its name are checked; attention_of() and matmul_of() check its tables of
/// functions. Thread safety: it does not change.
class KernelLibrary {
 public:
  /// `pointer` is the JSON pointer of the spec's member that names the object, for errors. Throws: ConfigError with the
  /// pointer and the path, if the system cannot load the file, if the symbol is absent, for another version, and for a
  /// name or a version that is no short text.
  KernelLibrary(const std::string& path, std::string pointer);
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  const droptest_kernel_library& tables() const { return *tables_; }
  /// The name and the version that the object gives itself.
  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }
  /// The text of an error: `/kernels/... "PATH" (NAME VERSION): message`.
  std::string error_text(const std::string& message) const;

 private:
  void check_tables();

  std::string path_;
  std::string pointer_;
  std::string name_;
  std::string version_;
  void* handle_ = nullptr;
  const droptest_kernel_library* tables_ = nullptr;
};

/// The attention of the object. The object is never unloaded, because it may have threads. Calls of the kernel throw
/// ConfigError if a function of the object fails. Throws: ConfigError if the object has no attention, or one without
/// float, the causal mask or some function.
std::unique_ptr<AttentionKernel> attention_of(std::shared_ptr<const KernelLibrary> library);
/// The GEMMs of the object, with the contract of attention_of().
std::unique_ptr<MatmulKernel> matmul_of(std::shared_ptr<const KernelLibrary> library);

}  // namespace droptest::models
