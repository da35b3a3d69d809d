// SPDX-License-Identifier: Apache-2.0
// NCCL's own library, which stands behind the functions of the same names in this one.
#pragma once

#include <nccl.h>

#include <string>
#include <type_traits>
#include <utility>

#include "api/nccl/last_error.h"
#include "api/nccl/newer_nccl.h"

namespace droptest::nccl_shim {

/// The address of a function of NCCL's library, which is loaded at the first call: the file that DROPTEST_NCCL_LIBRARY
/// names, else libnccl.so.2 in a folder of LD_LIBRARY_PATH, in the folder of PyTorch's packages, in the folder in which
/// the build found it, or in the system's folders; never this library. If there is none, it ends the program with a
/// message that lists the files, because NCCL's functions cannot report it. Null: the library has no such function.
void* real_address(const char* name);

/// Whether the calling thread is within real_call(): NCCL's own calls of its functions are passed on as they are.
bool within_real_call();

class RealCallScope {
 public:
  RealCallScope();
  ~RealCallScope();
  RealCallScope(const RealCallScope&) = delete;
  RealCallScope& operator=(const RealCallScope&) = delete;
};

/// Calls NCCL's own function of that name; failed_without() if the library is too old to have it.
template <class Function, class... Arguments>
auto real_call(Function* /*declared*/, const char* name, Arguments... arguments) {
  const RealCallScope scope;
  auto* const function = reinterpret_cast<Function*>(real_address(name));
  if constexpr (std::is_same_v<decltype(function(std::move(arguments)...)), ncclResult_t>) {
    return function == nullptr ? failed_without(name) : passed_on(function(std::move(arguments)...));
  } else {
    return function(std::move(arguments)...);
  }
}

}  // namespace droptest::nccl_shim

/// DROPTEST_REAL(ncclAllReduce, in, out, ...): calls NCCL's own function.
#define DROPTEST_REAL(function, ...) ::droptest::nccl_shim::real_call(&function, #function __VA_OPT__(, ) __VA_ARGS__)
