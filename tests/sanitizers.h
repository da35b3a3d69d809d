// SPDX-License-Identifier: Apache-2.0
// The sanitizers of the build, which change the times and the memory of a test.
#pragma once

namespace droptest {

#if defined(__has_feature)
constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
#endif
constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

}  // namespace droptest
