// SPDX-License-Identifier: Apache-2.0
#include "comm/spec/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "sim/error.h"

namespace droptest::comm {

struct Sha256::Context {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> state{EVP_MD_CTX_new()};
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  DROPTEST_CHECK(EVP_DigestInit_ex(context_->state.get(), EVP_sha256(), nullptr) == 1, "EVP_DigestInit_ex(sha256)");
}

Sha256::~Sha256() = default;

void Sha256::add(std::string_view piece) {
  DROPTEST_CHECK(EVP_DigestUpdate(context_->state.get(), piece.data(), piece.size()) == 1, "EVP_DigestUpdate(sha256)");
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  const int done = EVP_DigestFinal_ex(context_->state.get(), digest.data(), &size);
  DROPTEST_CHECK(done == 1 && size == 32, "EVP_DigestFinal_ex(sha256)");
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += kDigits[digest[i] >> 4U];
    hex += kDigits[digest[i] & 15U];
  }
  return hex;
}

std::string sha256_hex(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.hex();
}

}  // namespace droptest::comm
