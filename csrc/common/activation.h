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
  kRelu2 = 7,      // relu(z)^2
  kQuickGelu = 8,  // z sigmoid(1.702 z)
  kLeakyRelu = 9,  // slope 0.01
  kHardswish = 10,
  kMish = 11,
  kSoftplus = 12,  // beta 1, threshold 20
  kElu = 13,       // alpha 1
  kRelu6 = 14,
};
inline constexpr int64_t kNumActivations = 15;

// NOTE: a kernel has an instance for each activation up to relu2, and one for all rare ones, in
// which a switch chooses: an instance of each would double the code of every epilogue.
constexpr bool is_rare(Activation activation) { return activation > Activation::kRelu2; }

// The template argument of that instance; no op takes it.
inline constexpr Activation kAnyRare = Activation{-1};

// What backward needs next to dy: nothing, the output y = act(z), or the pre-activation z.
enum class Saved { kNothing, kOutput, kPreact };

constexpr Saved saved_for_backward(Activation activation) {
  switch (activation) {
    case Activation::kNone: return Saved::kNothing;
    case Activation::kRelu:
    case Activation::kSigmoid:
    case Activation::kTanh:
    case Activation::kLeakyRelu:
    case Activation::kRelu6: return Saved::kOutput;
    default: return Saved::kPreact;
  }
}

}  // namespace fusedops
