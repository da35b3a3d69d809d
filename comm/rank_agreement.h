// SPDX-License-Identifier: Apache-2.0
// One value for all ranks from the values that each computes for itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace droptest::comm {

/// Rank 0's number. Ranks: all. The traffic of these functions is of class control.
std::uint64_t number_of_root(std::uint64_t number, Communicator& group, std::string_view name);

/// Rank 0's text. Ranks: all.
std::string text_of_root(std::string text, Communicator& group, std::string_view name);

/// The texts of all ranks, in order. Ranks: all.
std::vector<std::string> gather_texts(const std::string& text, Communicator& group, std::string_view name);

/// Runs `work` on rank 0, on a thread of its own, while the other ranks wait: they hear from rank 0 once each
/// `interval`, so that they do not time out. Ranks: all. Throws on rank 0 what `work` throws, after the others have
/// gone on. If a rank has died, rank 0 still waits for the end of `work`.
void run_on_root(Communicator& group, std::chrono::milliseconds interval, std::string_view name,
                 const std::function<void()>& work);

}  // namespace droptest::comm
