// SPDX-License-Identifier: Apache-2.0
// Every function of NCCL's headers, and its name with a "p" before it, as a jump to NCCL's own function. The names are
// weak, so that the functions of interposed.cc take their places.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "api/nccl/last_error.h"
#include "api/nccl/real_nccl.h"

#ifndef __x86_64__
#error "the jumps to NCCL's functions are written for x86-64"
#endif

namespace {

ncclResult_t lacking() { return ncclInvalidUsage; }

}  // namespace

extern "C" {

/// The address of NCCL's own function; the jumps come here, with the arguments of the function kept in place. If NCCL's
/// library is older, it is the address of a function that returns an error, and ncclGetLastError() names both.
__attribute__((visibility("hidden"))) void* droptest_nccl_address(const char* name) {
  void* const address = droptest::nccl_shim::real_address(name);
  if (address != nullptr) return address;
  try {
    droptest::nccl_shim::failed_without(name[0] == 'p' ? name + 1 : name);
  } catch (const std::exception& error) {  // no memory for the text
    std::fprintf(stderr, "droptest: %s: %s\n", name, error.what());
  }
  return reinterpret_cast<void*>(&lacking);
}

/// droptest_nccl_address() for functions that return something else than an ncclResult_t, and so cannot fail.
__attribute__((visibility("hidden"))) void* droptest_nccl_other_address(const char* name) {
  void* const address = droptest::nccl_shim::real_address(name);
  if (address != nullptr) return address;
  std::fprintf(stderr, "droptest: NCCL's own library has no function %s\n", name);
  std::abort();
}

}  // extern "C"

// The integer argument registers are kept; no function of NCCL has other arguments in registers. The stack is a
// multiple of 16 at the call.
#define DROPTEST_JUMP(name, address)            \
  __asm__(                                      \
      ".pushsection .rodata\n"                  \
      ".Lname_" #name ": .asciz \"" #name       \
      "\"\n"                                    \
      ".popsection\n"                           \
      ".pushsection .text\n"                    \
      ".weak " #name                            \
      "\n"                                      \
      ".type " #name ", @function\n" #name      \
      ":\n"                                     \
      "  push %rdi\n  push %rsi\n  push %rdx\n" \
      "  push %rcx\n  push %r8\n  push %r9\n"   \
      "  sub $8, %rsp\n"                        \
      "  lea .Lname_" #name                     \
      "(%rip), %rdi\n"                          \
      "  call " #address                        \
      "\n"                                      \
      "  add $8, %rsp\n"                        \
      "  pop %r9\n  pop %r8\n  pop %rcx\n"      \
      "  pop %rdx\n  pop %rsi\n  pop %rdi\n"    \
      "  jmp *%rax\n"                           \
      ".size " #name ", . - " #name             \
      "\n"                                      \
      ".popsection\n");

#define DROPTEST_NCCL_FUNCTION(name)         \
  DROPTEST_JUMP(name, droptest_nccl_address) \
  DROPTEST_JUMP(p##name, droptest_nccl_address)
#define DROPTEST_NCCL_OTHER_FUNCTION(name)         \
  DROPTEST_JUMP(name, droptest_nccl_other_address) \
  DROPTEST_JUMP(p##name, droptest_nccl_other_address)
#include "nccl_names.inc"
