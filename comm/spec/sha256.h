// SPDX-License-Identifier: Apache-2.0
// SHA-256; hides the library.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace droptest::comm {

/// The hash of bytes that arrive in pieces. Source: FIPS 180-4.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void add(std::string_view piece);
  /// The hash of all pieces as 64 lower-case hex digits; the last call.
  std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// The hash of a text as 64 lower-case hex digits.
std::string sha256_hex(std::string_view text);

}  // namespace droptest::comm
