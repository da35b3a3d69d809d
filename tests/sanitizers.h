// SPDX-License-Identifier: Apache-2.0
// The sanitizers that a test is built with: its times and its memory are then other than a user's.
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
