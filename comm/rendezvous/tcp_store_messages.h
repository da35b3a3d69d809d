// SPDX-License-Identifier: Apache-2.0
// The messages between a TCP store and its clients (docs/formats.md, "TCP rendezvous").
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace droptest::comm {

/// The first bytes of each direction. They differ, so that a client that reaches itself does not accept itself as a
/// store.
inline constexpr std::string_view kClientGreeting = "DTstore1";
inline constexpr std::string_view kServerGreeting = "dtSTORE1";

/// Longer keys and values are neither sent nor accepted.
inline constexpr std::size_t kStoreKeyBytesMost = 1024;
inline constexpr std::size_t kStoreValueBytesMost = std::size_t{4} << 20;

struct StoreRequest {
  enum class Operation : std::uint8_t { kSetIfAbsent = 's', kGet = 'g', kClear = 'c' };
  Operation operation = Operation::kGet;
  std::string key;
  std::string value;
};

enum class StoreVerdict : std::uint8_t {
  kNo = 0,        ///< no such key; the key is there already; another launch's store: its id is the value
  kYes = 1,       ///< done; the requested value
  kFarewell = 2,  ///< no answer to a request: rank 0 has left in order, no more answers follow
};

struct AnswerHead {
  StoreVerdict verdict = StoreVerdict::kNo;
  std::size_t value_bytes = 0;  ///< bytes of the value that follows
};
inline constexpr std::size_t kAnswerHeadBytes = 5;

/// A client's greeting and the id of its launch, as bytes.
std::string encode_hello(std::string_view launch_id);
std::string encode_request(const StoreRequest& request);
std::string encode_answer(StoreVerdict verdict, std::string_view value = {});

/// Removes a whole message from the front of the arrived bytes; absent while a part of it is missing. Throws: CommError
/// if the bytes cannot become a message: the peer is not one of ours.
std::optional<std::string> take_hello(std::string& arrived);
std::optional<StoreRequest> take_request(std::string& arrived);
/// `bytes` are exactly kAnswerHeadBytes. Throws: CommError.
AnswerHead decode_answer_head(std::string_view bytes);

}  // namespace droptest::comm
