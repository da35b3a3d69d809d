// SPDX-License-Identifier: Apache-2.0
#include "api/network_identity.h"

#include <nlohmann/json.hpp>

#include "api/argument_error.h"
#include "api/fate_questions.h"
#include "comm/json/json_text.h"
#include "comm/spec/sha256.h"

namespace droptest::api {
namespace {

using nlohmann::json;

std::string value_at(const json& document, const std::string& place) {
  const json::json_pointer pointer(place);
  return document.contains(pointer) ? comm::quote_json(document[pointer]) : "nothing";
}

// A difference names the end of an array by "-".
std::string place_of(const json& difference, const json& own) {
  const json::json_pointer place(difference.at("path").get<std::string>());
  if (place.back() != "-") return place.to_string();
  return (place.parent_pointer() / own[place.parent_pointer()].size()).to_string();
}

}  // namespace

std::uint64_t network_digest(const droptest_network& network) {
  return std::stoull(comm::network_digest_text(network.program.identity), nullptr, 16);
}

void check_peer(const droptest_network& network, int peer, const std::string& identity) {
  if (identity == network.program.identity) return;
  const json own = json::parse(network.program.identity);
  const json theirs = json::parse(identity, nullptr, /*allow_exceptions=*/false);
  const json differences = theirs.is_object() ? json::diff(own, theirs) : json::array();
  if (differences.empty()) {
    throw ArgumentError("identity: got a text that is not that of another network, want the one that " +
                        std::string("droptest_network_identity() gives on rank ") + std::to_string(peer));
  }
  const std::string place = place_of(differences.front(), own);
  throw MismatchError("network: " + place + " is " + value_at(own, place) + " on rank " + std::to_string(network.rank) +
                      " and " + value_at(theirs, place) + " on rank " + std::to_string(peer) +
                      ": want one network section and one seed on all ranks");
}

}  // namespace droptest::api
