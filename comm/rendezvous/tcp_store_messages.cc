// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/tcp_store_messages.h"

#include <algorithm>

#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr std::size_t kRequestHeadBytes = 9;

void append_number(std::string& bytes, std::size_t number) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(number >> shift & 0xff);
}

std::size_t number_at(std::string_view bytes, std::size_t place) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < 4; ++i) number |= std::size_t{static_cast<unsigned char>(bytes[place + i])} << (8 * i);
  return number;
}

[[noreturn]] void refuse(const std::string& what) { throw CommError("rendezvous: not a message of droptest: " + what); }

void require_at_most(std::size_t bytes, std::size_t most, const char* what) {
  if (bytes <= most) return;
  refuse(std::string(what) + " of " + std::to_string(bytes) + " bytes, want at most " + std::to_string(most));
}

}  // namespace

std::string encode_hello(std::string_view launch_id) {
  std::string bytes(kClientGreeting);
  append_number(bytes, launch_id.size());
  return bytes.append(launch_id);
}

std::string encode_request(const StoreRequest& request) {
  DROPTEST_CHECK(request.key.size() <= kStoreKeyBytesMost && request.value.size() <= kStoreValueBytesMost,
                 "key " + request.key.substr(0, 80) + " with " + std::to_string(request.value.size()) + " bytes");
  std::string bytes(1, static_cast<char>(request.operation));
  append_number(bytes, request.key.size());
  append_number(bytes, request.value.size());
  return bytes + request.key + request.value;
}

std::string encode_answer(StoreVerdict verdict, std::string_view value) {
  std::string bytes(1, static_cast<char>(verdict));
  append_number(bytes, value.size());
  return bytes.append(value);
}

std::optional<std::string> take_hello(std::string& arrived) {
  const std::size_t seen = std::min(arrived.size(), kClientGreeting.size());
  if (arrived.compare(0, seen, kClientGreeting, 0, seen) != 0) refuse("greeting");
  const std::size_t head = kClientGreeting.size() + 4;
  if (arrived.size() < head) return std::nullopt;
  const std::size_t id_bytes = number_at(arrived, kClientGreeting.size());
  require_at_most(id_bytes, kStoreKeyBytesMost, "launch id");
  if (arrived.size() < head + id_bytes) return std::nullopt;
  std::string launch_id = arrived.substr(head, id_bytes);
  arrived.erase(0, head + id_bytes);
  return launch_id;
}

std::optional<StoreRequest> take_request(std::string& arrived) {
  if (arrived.size() < kRequestHeadBytes) return std::nullopt;
  StoreRequest request;
  request.operation = static_cast<StoreRequest::Operation>(arrived[0]);
  switch (request.operation) {
    case StoreRequest::Operation::kSetIfAbsent:
    case StoreRequest::Operation::kGet:
    case StoreRequest::Operation::kClear:
      break;
    default:
      refuse("operation " + std::to_string(arrived[0]));
  }
  const std::size_t key_bytes = number_at(arrived, 1);
  const std::size_t value_bytes = number_at(arrived, 5);
  require_at_most(key_bytes, kStoreKeyBytesMost, "key");
  require_at_most(value_bytes, kStoreValueBytesMost, "value");
  const std::size_t whole = kRequestHeadBytes + key_bytes + value_bytes;
  if (arrived.size() < whole) return std::nullopt;
  request.key = arrived.substr(kRequestHeadBytes, key_bytes);
  request.value = arrived.substr(kRequestHeadBytes + key_bytes, value_bytes);
  arrived.erase(0, whole);
  return request;
}

AnswerHead decode_answer_head(std::string_view bytes) {
  DROPTEST_CHECK(bytes.size() == kAnswerHeadBytes, std::to_string(bytes.size()));
  const auto verdict = static_cast<unsigned char>(bytes[0]);
  if (verdict > static_cast<unsigned char>(StoreVerdict::kFarewell)) refuse("verdict " + std::to_string(verdict));
  const std::size_t value_bytes = number_at(bytes, 1);
  require_at_most(value_bytes, kStoreValueBytesMost, "value");
  return {static_cast<StoreVerdict>(verdict), value_bytes};
}

}  // namespace droptest::comm
