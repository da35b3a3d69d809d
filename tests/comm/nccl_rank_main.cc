// SPDX-License-Identifier: Apache-2.0
// One rank of the `nccl` backend as a separate process, on real devices. Usage, as for gloo_rank_main:
//   nccl_rank_main RANK WORLD_SIZE TIMEOUT_MS file DIRECTORY LAUNCH_ID SCENARIO CULPRIT OUTPUT TURNS
// If there are fewer devices than ranks, each rank counts as a separate host, so that NCCL lets ranks share a device.
// Writes "ok ..." or "error TYPE: MESSAGE" to the file OUTPUT.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/backend_registry.h"
#include "comm/device/device_info.h"
#include "comm/device/device_tensor.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "tests/comm/through_device.h"
#include "tests/comm/turn_clock.h"

namespace droptest::comm {
namespace {

constexpr unsigned kWatchdogSeconds = 100;
constexpr auto kClass = sim::TrafficClass::kTpForward;
const Message kMessage{kClass, "activation", 0};

// Values of changing magnitude, so that sums round.
template <class T>
std::vector<T> values(int rank, std::uint64_t count) {
  std::vector<T> result(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const double x =
        std::sin(static_cast<double>(i * 7 + 1) + 0.3 * rank) * std::ldexp(1.0, static_cast<int>(i % 9) - 4);
    if constexpr (std::is_same_v<T, Bf16>) {
      result[i] = to_bf16(static_cast<float>(x));
    } else if constexpr (std::is_integral_v<T>) {
      result[i] = i * 1000003 + static_cast<std::uint64_t>(rank);
    } else {
      result[i] = static_cast<T>(x);
    }
  }
  return result;
}

template <class T>
constexpr double kEpsilon = static_cast<double>(std::numeric_limits<T>::epsilon());
template <>
constexpr double kEpsilon<Bf16> = 1.0 / 128;

double number(Bf16 value) { return to_float(value); }
template <class T>
double number(T value) {
  return static_cast<double>(value);
}

/// Makes the same calls on the host and on the device, and compares the results.
class Comparison {
 public:
  Comparison(Communicator& host, Communicator& device) : host_(host), device_(device) {}

  template <class T>
  void all(std::uint64_t count) {
    const auto n = static_cast<std::uint64_t>(host_.world_size());
    std::vector<std::uint64_t> uneven(n, count / n);
    uneven[0] += 5;
    if (n > 1) uneven[1] = 0;
    for (const auto& counts : {std::vector<std::uint64_t>(n, count), uneven}) {
      std::uint64_t total = 0;
      for (const std::uint64_t c : counts) total += c;
      const std::uint64_t own = counts[static_cast<std::size_t>(host_.rank())];
      const std::vector<T> input = values<T>(host_.rank(), total);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        both<T>("all_reduce", total, op == ReduceOp::kSum,
                [&](Communicator& c, std::span<T> out) { c.all_reduce(std::span<const T>(input), out, op, kMessage); });
        both<T>("reduce_scatter", own, op == ReduceOp::kSum, [&](Communicator& c, std::span<T> out) {
          c.reduce_scatter(std::span<const T>(input), out, counts, op, kMessage);
        });
      }
      both<T>("all_gather", total, false, [&](Communicator& c, std::span<T> out) {
        c.all_gather(std::span<const T>(input).first(own), out, counts, kMessage);
      });
      const std::vector<std::uint64_t> received(n, own);
      both<T>("all_to_all", own * n, false, [&](Communicator& c, std::span<T> out) {
        c.all_to_all(std::span<const T>(input), counts, out, received, kMessage);
      });
      both<T>("broadcast", total, false, [&](Communicator& c, std::span<T> out) {
        std::copy(input.begin(), input.end(), out.begin());
        c.broadcast(out, c.world_size() - 1, kMessage);
      });
      both<T>("send and recv", total, false, [&](Communicator& c, std::span<T> out) {
        c.send(std::span<const T>(input), (c.rank() + 1) % c.world_size(), kMessage);
        c.recv(out, (c.rank() + c.world_size() - 1) % c.world_size(), kMessage);
      });
    }
  }

 private:
  // Sums may differ by one rounding for each addition, of at most the sum of the magnitudes, which here is below 16 for
  // each rank; everything else is exact.
  template <class T, class CallIt>
  void both(std::string_view what, std::uint64_t count, bool rounds, const CallIt& call) {
    std::vector<T> on_host(count);
    std::vector<T> on_device(count);
    call(host_, std::span<T>(on_host));
    call(device_, std::span<T>(on_device));
    const bool exact = !rounds || std::is_integral_v<T>;
    const double tolerance = exact ? 0 : kEpsilon<T> * host_.world_size() * 16.0 * host_.world_size();
    for (std::size_t i = 0; i < count; ++i) {
      const bool same = std::memcmp(&on_host[i], &on_device[i], sizeof(T)) == 0;
      if (same || (!exact && std::abs(number(on_host[i]) - number(on_device[i])) <= tolerance)) continue;
      throw std::runtime_error(std::string(what) + ": rank " + std::to_string(host_.rank()) + ": element " +
                               std::to_string(i) + " of " + std::to_string(count) + " is " +
                               std::to_string(number(on_device[i])) + ", want " + std::to_string(number(on_host[i])));
    }
  }

  Communicator& host_;
  Communicator& device_;
};

void compare(Communicator& communicator, int device) {
  ThroughDevice through(communicator, device);
  Comparison comparison(communicator, through);
  for (const std::uint64_t count : {0U, 1U, 1003U, 300000U}) {
    comparison.all<float>(count);
    comparison.all<double>(count);
    comparison.all<std::uint64_t>(count);
  }
  comparison.all<Bf16>(1003);
}

// The loss layer over messages: the fates, and with them the bits, are those of the host.
std::uint64_t compare_lossy(Communicator& communicator, int device, std::string_view name) {
  const std::string_view path = path_entry(name).name;
  std::vector<std::vector<float>> results;
  std::vector<std::uint64_t> digests;
  for (const bool on_device : {false, true}) {
    ClassNetwork network;
    network.path = path;
    network.reduce.loss = network.gather.loss = std::make_shared<sim::Bernoulli>(0.05);
    LossyOptions options;
    options.network.seed = 5;
    options.network.of(kClass) = network;
    LossyCommunicator lossy(communicator, options);
    ThroughDevice through(lossy, device);
    Communicator& used = on_device ? static_cast<Communicator&>(through) : lossy;
    std::vector<float>& result = results.emplace_back();
    for (std::uint64_t step = 0; step < 6; ++step) {
      used.begin_step(step);
      std::vector<float> data = values<float>(communicator.rank() + static_cast<int>(step), 50000);
      used.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
      result.insert(result.end(), data.begin(), data.end());
    }
    lossy.verify_fates();
    digests.push_back(lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0).digest);
  }
  if (digests[0] != digests[1]) throw std::runtime_error(std::string(path) + ": the fates on the device are others");
  if (std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)) != 0) {
    throw std::runtime_error(std::string(path) + ": the results on the device are others");
  }
  return digests[0];
}

// Steps of all-reduces that are waited for, as training does; the culprit fails between two of them.
void fail_in_world(Communicator& communicator, TurnClock& clock, int device, int culprit, std::string_view how) {
  Stream stream(device);
  DeviceBuffer<float> data(1000000, "data");
  zero_on_device(data.elems(), stream);
  for (std::uint64_t step = 0; step < 10; ++step) {
    communicator.begin_step(step);
    if (step == 3 && communicator.rank() == culprit) {
      if (how == "kill") ::raise(SIGKILL);
      if (how == "stop") {
        clock.rest();
        ::raise(SIGSTOP);
      }
      if (how == "throw") throw std::domain_error("loss is not a number");
    }
    communicator.all_reduce(device_tensor(data.elems(), stream), ReduceOp::kSum, {.name = "grad.wte"});
    stream.synchronize();
  }
}

std::string run(Communicator& communicator, TurnClock& clock, int device, std::string_view scenario, int culprit) {
  const std::size_t colon = scenario.find(':');
  const std::string_view kind = scenario.substr(0, colon);
  const std::string_view how = colon == std::string_view::npos ? "" : scenario.substr(colon + 1);
  if (kind == "compare") compare(communicator, device);
  if (kind == "parts") {
    const auto reversed = communicator.split(0, -communicator.rank());
    compare(*reversed, device);
    const auto part = communicator.split(communicator.rank() % 2, 0);
    compare(*part, device);
  }
  if (kind == "lossy") return std::to_string(compare_lossy(communicator, device, how));
  if (kind == "world") fail_in_world(communicator, clock, device, culprit, how);
  return "";
}

int rank_main(const std::vector<std::string>& arguments) {
  ProcessGroupOptions options;
  options.rank = std::stoi(arguments.at(0));
  options.world_size = std::stoi(arguments.at(1));
  options.timeout = std::chrono::milliseconds(std::stoi(arguments.at(2)));
  options.rendezvous.directory = arguments.at(4);
  options.rendezvous.launch_id = arguments.at(5);
  options.local_rank = options.rank;
  Turns turns(arguments.at(9), options.world_size);
  TurnClock clock(turns, options.rank);
  options.clock = &clock;
  const int devices = static_cast<int>(survey_devices().devices.size());
  if (devices < options.world_size) {
    ::setenv("NCCL_HOSTID", ("droptest-" + arguments.at(0)).c_str(), 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  }
  std::string result;
  int status = 0;
  try {
    const auto communicator = backend_entry("nccl").connect(options);
    const int device = devices < options.world_size ? options.rank % devices : options.rank;
    try {
      result = "ok " + run(*communicator, clock, device, arguments.at(6), std::stoi(arguments.at(7)));
    } catch (const std::exception& error) {
      communicator->abort(error.what());
      throw;
    }
  } catch (const CommError& error) {
    result = std::string("error CommError: ") + error.what();
    status = 2;
  } catch (const std::exception& error) {
    result = std::string("error other: ") + error.what();
    status = 2;
  }
  std::ofstream(arguments.at(8)) << result;
  return status;
}

}  // namespace
}  // namespace droptest::comm

int main(int argc, char** argv) {
  ::alarm(droptest::comm::kWatchdogSeconds);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return droptest::comm::rank_main({argv + 1, argv + argc});
}
