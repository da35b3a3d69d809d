// SPDX-License-Identifier: Apache-2.0
#include "comm/started/work.h"

#include <utility>

#include "comm/communicator.h"

namespace droptest::comm {

Work::Work(Communicator& communicator, std::uint64_t number, std::unique_ptr<WorkInFlight> in_flight)
    : communicator_(&communicator),
      number_(number),
      in_flight_(std::move(in_flight)),
      unwinding_(std::uncaught_exceptions()) {}

Work::Work(Work&& other) noexcept { *this = std::move(other); }

Work& Work::operator=(Work&& other) noexcept {
  if (this == &other) return *this;
  drop();
  communicator_ = std::exchange(other.communicator_, nullptr);
  in_flight_ = std::move(other.in_flight_);
  error_ = std::exchange(other.error_, nullptr);
  number_ = other.number_;
  unwinding_ = other.unwinding_;
  return *this;
}

Work::~Work() { drop(); }

void Work::wait() {
  if (error_) std::rethrow_exception(error_);
  if (communicator_ == nullptr) return;
  try {
    if (in_flight_ != nullptr) in_flight_->finish();
  } catch (...) {
    error_ = std::current_exception();
  }
  release();
  if (error_) std::rethrow_exception(error_);
}

bool Work::done() noexcept {
  if (communicator_ == nullptr || in_flight_ == nullptr) return true;
  try {
    return in_flight_->finished();
  } catch (...) {
    return true;  // wait() throws the reason
  }
}

void Work::release() noexcept {
  in_flight_.reset();
  communicator_->forget_unfinished(number_);
  communicator_ = nullptr;
}

void Work::drop() noexcept {
  if (communicator_ == nullptr) return;
  if (std::uncaught_exceptions() > unwinding_) {
    communicator_->abort("an error unwound its program while a started call was under way");
  }
  Communicator& communicator = *communicator_;
  try {
    wait();
  } catch (...) {
    communicator.keep_dropped(std::current_exception());
  }
}

}  // namespace droptest::comm
