// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "sim/error.h"

namespace droptest::experiments {

std::string sha256_hex(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  const int done = EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
  DROPTEST_CHECK(done == 1 && size == 32, "EVP_Digest(sha256)");
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += kDigits[digest[i] >> 4U];
    hex += kDigits[digest[i] & 15U];
  }
  return hex;
}

}  // namespace droptest::experiments
