// Activation codes: the integers that cross the op boundary and select a branch in every kernel.
#pragma once

#include <cstdint>

namespace fusedops {

// NOTE: activation.py holds the same table; tests/contract/test_contract.py compares them.
enum class Activation : int64_t {
  kNone = 0,
  kRelu = 1,
  kGelu = 2,      // erf form
  kGeluTanh = 3,  // tanh form
  kSilu = 4,
  kSigmoid = 5,
  kTanh = 6,
  kRelu2 = 7,  // relu(z)^2
};
inline constexpr int64_t kNumActivations = 8;

// What backward needs next to dy: nothing, the output y = act(z), or the pre-activation z.
enum class Saved { kNothing, kOutput, kPreact };

constexpr Saved saved_for_backward(Activation activation) {
  switch (activation) {
    case Activation::kNone: return Saved::kNothing;
    case Activation::kRelu:
    case Activation::kSigmoid:
    case Activation::kTanh: return Saved::kOutput;
    default: return Saved::kPreact;
  }
}

}  // namespace fusedops
