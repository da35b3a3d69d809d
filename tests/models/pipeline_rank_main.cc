// SPDX-License-Identifier: Apache-2.0
// One rank of a pipeline as a separate process. Scenario "FAULT:PLACE": the culprit has the fault at that place of its
// training step.
#include <string>

#include "tests/comm/rank_program.h"
#include "tests/models/tiny_pipeline.h"

namespace droptest::models {
namespace {

std::uint64_t rank_body(const comm::ProcessGroupOptions& options, comm::TurnClock& clock, const comm::RankPart& part) {
  const std::size_t colon = part.scenario.find(':');
  const std::string fault = part.scenario.substr(0, colon);
  const int place = std::stoi(part.scenario.substr(colon + 1));
  return comm::with_communicator(options, [&](comm::Communicator& world) {
    TinyPipeline pipeline(failing_schedule(), failing_schedule().stages(), world);
    pipeline.step([&](int at) {
      if (world.rank() == part.culprit && at == place) comm::misbehave(clock, fault);
    });
    return std::uint64_t{0};
  });
}

}  // namespace
}  // namespace droptest::models

int main(int argc, char** argv) {
  return droptest::comm::rank_main({argv + 1, argv + argc}, droptest::models::rank_body);
}
