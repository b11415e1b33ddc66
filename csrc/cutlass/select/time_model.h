// What the times of all families are made of: the GPU's rates, what a product moves, how two times
// overlap. Each family's own model is in families/. Host only.
//
// The constants are in time_constants.h, which perf/gemm/fit_time_model.py writes: it fits them to
// the committed sweeps (one H200, bf16), and states there how much the model's choices lose. They
// lose most, 4 %, where a weight has fewer than 2048 rows. Cycles are of a nominal clock.
#pragma once

#include <cmath>

#include "csrc/cutlass/problem.h"
#include "csrc/cutlass/select/time_constants.h"

namespace fusedops {

constexpr bool is_half(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// Whether an epilogue takes its time for an activation, as it does not for relu.
constexpr bool is_costly(Activation activation) {
  return activation != Activation::kNone && activation != Activation::kRelu;
}

// Bytes of an output element that an epilogue reads and writes. kGrad: saved, d and, where
// act(saved) takes time, that.
int output_bytes(const GemmProblem& p);

// Bytes of operands and outputs, each once.
double dram_bytes(const GemmProblem& p);

// What two things at once take: from the longer one (power infinite) to their sum (1).
double overlap(double a, double b, double power);
// overlap(a, b, 4), for where selection asks too often.
inline double longer(double a, double b) {
  return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b));
}

// What splitk_reduce takes to add the slices of K.
double reduce_us(const GemmProblem& p, int slices);

// What a copy of an operand or a result of so many elements takes, and one that transposes it.
double pack_us(const GemmProblem& p, int64_t rows, int64_t cols, bool transposes = false);

// ---- what a step of 128 bytes of K loads ----

// The extent along which an operand is contiguous.
inline int64_t line_of_a(const GemmProblem& p) { return p.a.major == Major::kK ? p.k : p.m; }
inline int64_t line_of_b(const GemmProblem& p) { return p.b.major == Major::kK ? p.k : p.n; }

// Whether lines begin inside those of 128 bytes of L2, or inside sectors of 32.
inline bool is_cut(const GemmProblem& p, int64_t line, int bytes) {
  return line * dtype_bytes(p.dtype) % bytes != 0;
}

// Bytes of a step's rows of both operands; `cold`: how much more those of the larger one cost.
double step_bytes(const GemmProblem& p, double rows_a, double rows_b, double cold);

}  // namespace fusedops
