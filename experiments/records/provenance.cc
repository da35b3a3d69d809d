// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/provenance.h"

#include <oneapi/dnnl/dnnl_version.h>
#include <openssl/opensslv.h>
#include <unistd.h>

#include <Eigen/Core>
#include <array>
#include <boost/version.hpp>
#include <ctime>

#include "droptest_commit.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

std::string dotted(int major, int minor, int patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

}  // namespace

Provenance build_provenance() {
  Provenance provenance;
  provenance.version = DROPTEST_VERSION;
  provenance.commit = kCommit;
  provenance.host = host_name();
  provenance.compiler = DROPTEST_COMPILER;
  provenance.libraries = {
      {"oneDNN", dotted(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH)},
      {"Eigen", dotted(EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION)},
      {"Boost", dotted(BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000, BOOST_VERSION % 100)},
      {"nlohmann_json", dotted(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
      {"OpenSSL", OPENSSL_VERSION_STR},
      {"Gloo", DROPTEST_GLOO_VERSION},
  };
  return provenance;
}

std::string utc_text(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  DROPTEST_CHECK(::gmtime_r(&seconds, &parts) != nullptr, "time " + std::to_string(seconds));
  std::array<char, 32> text{};
  DROPTEST_CHECK(std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts) > 0, "strftime");
  return text.data();
}

nlohmann::json to_json(const Provenance& provenance) {
  return {{"version", provenance.version},    {"commit", provenance.commit},   {"host", provenance.host},
          {"compiler", provenance.compiler},  {"started", provenance.started}, {"finished", provenance.finished},
          {"libraries", provenance.libraries}};
}

}  // namespace droptest::experiments
