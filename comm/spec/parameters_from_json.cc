// SPDX-License-Identifier: Apache-2.0
#include "comm/spec/parameters_from_json.h"

#include <nlohmann/json.hpp>

#include "comm/json/schema_checker.h"

namespace droptest::comm {

sim::Parameters parameters_from_json(const nlohmann::json& value, const std::string& where) {
  using sim::Parameters;
  switch (value.type()) {
    case nlohmann::json::value_t::boolean:
      return {value.get<bool>(), where};
    case nlohmann::json::value_t::number_integer:
      return {value.get<std::int64_t>(), where};
    case nlohmann::json::value_t::number_unsigned:
      return {value.get<std::uint64_t>(), where};
    case nlohmann::json::value_t::number_float:
      return {value.get<double>(), where};
    case nlohmann::json::value_t::string:
      return {value.get<std::string>(), where};
    case nlohmann::json::value_t::array: {
      Parameters::List list;
      for (std::size_t i = 0; i < value.size(); ++i) {
        list.push_back(parameters_from_json(value[i], where + "/" + std::to_string(i)));
      }
      return {std::move(list), where};
    }
    case nlohmann::json::value_t::object: {
      Parameters::Members members;
      for (const auto& [name, member] : value.items()) {
        members.emplace(name, parameters_from_json(member, child_pointer(where, name)));
      }
      return {std::move(members), where};
    }
    default:
      return {std::monostate{}, where};
  }
}

}  // namespace droptest::comm
