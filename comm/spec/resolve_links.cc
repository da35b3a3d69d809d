// SPDX-License-Identifier: Apache-2.0
#include "comm/spec/resolve_links.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"

namespace droptest::comm {
namespace {

using nlohmann::json;

/// A number of at most five digits; for more digits, a number that is larger than any rank.
std::uint32_t small_number(const std::string& digits) {
  const std::size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return 0;
  return digits.size() - first > 5 ? 99999U : static_cast<std::uint32_t>(std::stoul(digits.substr(first)));
}

RankSet ranks_of(const json& list, int world_size, const std::string& where, std::vector<std::string>& errors) {
  RankSet set;
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    if (list[i].is_string()) {  // the schema has checked its form, "4-7"
      const std::string text = list[i].get<std::string>();
      const std::size_t dash = text.find('-');
      first = small_number(text.substr(0, dash));
      last = small_number(text.substr(dash + 1));
    } else {
      first = last = list[i].get<std::uint16_t>();
    }
    if (first > last || last >= static_cast<std::uint32_t>(world_size)) {
      errors.push_back(where + "/" + std::to_string(i) + ": got " + quote_json(list[i]) + ", want ranks from 0 to " +
                       std::to_string(world_size - 1) +
                       (first > last ? ", the first of a range not above the last" : ""));
      continue;
    }
    set.ranges.emplace_back(static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(last));
  }
  return set;
}

}  // namespace

LinkOverride links_of(const json& override_of_links, int world_size, const std::string& where,
                      std::vector<std::string>& errors) {
  LinkOverride links;
  const auto ranks = [&](const char* name) {
    if (!override_of_links.contains(name)) return RankSet();
    return ranks_of(override_of_links[name], world_size, where + "/" + name, errors);
  };
  links.sources = ranks("sources");
  links.destinations = ranks("destinations");
  links.ranks = ranks("ranks");
  const bool between = override_of_links.contains("between_groups_of");
  const bool within = override_of_links.contains("within_groups_of");
  if (between && within) {
    errors.push_back(where + ": got both between_groups_of and within_groups_of, want one of them");
  } else if (between || within) {
    const char* name = between ? "between_groups_of" : "within_groups_of";
    links.groups = between ? LinkOverride::Groups::kBetween : LinkOverride::Groups::kWithin;
    links.group_ranks = override_of_links[name].get<std::uint16_t>();
  }
  return links;
}

}  // namespace droptest::comm
