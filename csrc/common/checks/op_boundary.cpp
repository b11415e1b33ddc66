#include "csrc/common/checks/op_boundary.h"

#include <iostream>
#include <stdexcept>
#include <streambuf>
#include <string_view>
#include <utility>

// NOTE: newer torch keeps the text of an exception that its functions caught where older ones log
// it. Weak, so that the module also loads in those.
extern "C" [[gnu::weak]] const char* torch_exception_get_what_without_backtrace();

namespace fusedops {
namespace {

thread_local ErrorKeeper* current = nullptr;

// Passes on what is written to std::cerr, except what a keeper of the writing thread takes.
class LogFilter : public std::streambuf {
 public:
  explicit LogFilter(std::streambuf* behind) : behind_(behind) {}

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    return ErrorKeeper::keeps(text, size) ? size : behind_->sputn(text, size);
  }
  int_type overflow(int_type character) override {
    if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(0);
    const char text = traits_type::to_char_type(character);
    return ErrorKeeper::keeps(&text, 1) ? character : behind_->sputc(text);
  }
  int sync() override { return behind_->pubsync(); }

 private:
  std::streambuf* behind_;
};

// NOTE: never destroyed: std::cerr is used until the process ends.
[[maybe_unused]] std::streambuf* const installed =
    std::cerr.rdbuf(new LogFilter(std::cerr.rdbuf()));

bool is_error_code(const std::runtime_error& error) {
  return std::string_view(error.what()).find(" API call failed at ") != std::string_view::npos;
}

}  // namespace

ErrorKeeper::ErrorKeeper() : outer_(std::exchange(current, this)) {}

ErrorKeeper::~ErrorKeeper() {
  current = outer_;
  if (!log_.empty()) std::cerr << log_;
}

void ErrorKeeper::rethrow() {
  try {
    throw;
  } catch (const std::runtime_error& error) {
    if (!is_error_code(error)) throw;
    if (error_) {
      log_.clear();
      std::rethrow_exception(error_);
    }
    if (torch_exception_get_what_without_backtrace) {
      throw std::runtime_error(torch_exception_get_what_without_backtrace());
    }
    throw std::runtime_error(
        std::string("fusedops: a call of torch's failed, and TORCH_CPP_LOG_LEVEL hides why: ") +
        error.what());
  }
}

bool ErrorKeeper::keeps(const char* text, size_t size) {
  if (!current) return false;
  const std::exception_ptr error = std::current_exception();
  if (!error) return false;
  current->error_ = error;
  current->log_.append(text, size);
  return true;
}

}  // namespace fusedops
