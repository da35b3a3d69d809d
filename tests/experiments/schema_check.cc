// SPDX-License-Identifier: Apache-2.0
// A helper of test_schema_agrees.py: reads lines {"schema": NAME, "document": ...} and prints, for each, the list of
// the JSON pointers at which the document breaks the embedded schema of that name.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/json/json_text.h"
#include "experiments/schema/schema_kinds.h"

int main() {
  namespace comm = droptest::comm;
  using droptest::experiments::schema_names;
  using droptest::experiments::schema_of;
  std::string line;
  while (std::getline(std::cin, line)) {
    const nlohmann::json request = comm::parse_json(line, "stdin");
    const auto names = schema_names();
    const auto name = std::find_if(names.begin(), names.end(),
                                   [&request](const auto& known) { return request.at("schema") == known.first; });
    if (name == names.end()) {
      std::cerr << "schema_check: got " << request.at("schema") << ", want the name of a schema\n";
      return 2;
    }
    nlohmann::json pointers = nlohmann::json::array();
    for (const comm::Violation& violation : schema_of(name->second).check(request.at("document"))) {
      pointers.push_back(violation.pointer);
    }
    std::cout << comm::canonical_json(pointers) << "\n";
  }
  return 0;
}
