// Where an op of ours ends: an error that torch threw inside of it leaves it as it was thrown, an
// OutOfMemoryError as an OutOfMemoryError; in newer torch, which keeps the text of an error alone,
// with that text. Every kernel is registered with FUSEDOPS_BOX.
#pragma once

#include <torch/csrc/stable/library.h>

#include <exception>
#include <string>

namespace fusedops {

// The stable ABI's functions catch what ATen throws, log it to std::cerr from inside the handler
// (or, in newer torch, keep its text) and return an error code, of which torch's headers make a
// std::runtime_error that names their own source. A keeper takes both for its thread while an op
// runs: the exception, and the log's text.
class ErrorKeeper {
 public:
  ErrorKeeper();
  ~ErrorKeeper();
  ErrorKeeper(const ErrorKeeper&) = delete;
  ErrorKeeper& operator=(const ErrorKeeper&) = delete;

  // In a handler: throws the error that torch caught instead of the present one, if there is one.
  [[noreturn]] void rethrow();

  // True where text that goes to std::cerr was that of an exception, and now is the keeper's.
  static bool keeps(const char* text, size_t size);

 private:
  ErrorKeeper* outer_;  // that of an op which calls this one
  std::exception_ptr error_;
  std::string log_;
};

template <auto kBoxed>
void op_boundary(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs) {
  ErrorKeeper keeper;
  try {
    kBoxed(stack, num_inputs, num_outputs);
  } catch (...) {
    keeper.rethrow();
  }
}

}  // namespace fusedops

#define FUSEDOPS_BOX(function) (&::fusedops::op_boundary<&TORCH_BOX(function)>)
