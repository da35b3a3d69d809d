// SPDX-License-Identifier: Apache-2.0
// Kernels of a shared object with the C interface of models/droptest_kernels.h.
#pragma once

#include <memory>
#include <string>

#include "models/kernels/attention_kernel.h"
#include "models/kernels/matmul_kernel.h"

struct droptest_kernel_library;

namespace droptest::models {

/// A shared object that is loaded, and checked: version, name and the tables that it has. Thread safety: none needed,
/// it does not change.
class KernelLibrary {
 public:
  /// `pointer`: of the spec's member that names it, for errors. Throws: ConfigError with the pointer, the path, and the
  /// value got and wanted: for a file that the system does not load, a symbol that is absent, another version, a table
  /// without functions.
  KernelLibrary(const std::string& path, std::string pointer);
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  const droptest_kernel_library& tables() const { return *tables_; }
  /// As the object calls itself.
  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }
  /// `/kernels/... "PATH" (NAME VERSION): message`.
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

/// The object's attention; kernels share the object, which stays loaded for as long. Its calls throw ConfigError where
/// a function of the object fails. Throws: ConfigError where the object has none.
std::unique_ptr<AttentionKernel> attention_of(std::shared_ptr<const KernelLibrary> library);
/// The same of its GEMMs.
std::unique_ptr<MatmulKernel> matmul_of(std::shared_ptr<const KernelLibrary> library);

}  // namespace droptest::models
