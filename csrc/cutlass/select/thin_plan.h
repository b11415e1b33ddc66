// Whether a product runs at the speed of memory through one of the streaming kernels
// (kernels/thin), and which. Asked before the families of GEMM kernels, since those want operands
// packed that these read as they lie. Host only, no torch.
#pragma once

#include <string>
#include <utility>

#include "csrc/cutlass/configs/dots_problem.h"
#include "csrc/cutlass/configs/thin_problem.h"
#include "csrc/cutlass/configs/wide_problem.h"
#include "csrc/cutlass/select/operands.h"

namespace fusedops {

// kRows: rows of A stream past a B with a side of a few elements. kSums: K is what streams. kDots:
// one row of A meets every column of B. kWide: as kRows where a small K becomes an N of any size.
enum class ThinKernel : int8_t { kRows, kSums, kDots, kWide };

struct ThinPlan {
  ThinKernel kernel = ThinKernel::kRows;
  const char* rejected = nullptr;  // the reason, or null
  double expected_us = 0;
  thin::Rows rows{};  // of kRows and kWide; without what is no operand
  thin::Sums sums{};  // of kSums
  thin::Dots dots{};  // of kDots
  thin::DotsPlan dots_plan{};
};

// `problem` holds all but its operands, a is (M, K), b is (K, N).
ThinPlan plan_thin(const MatrixView& a, const MatrixView& b, const GemmProblem& problem,
                   const DeviceModel& device);

// What the kernels that select_gemm chooses among are expected to take, with the copies that they
// want; infinite where none can run.
double gemm_us(const MatrixView& a, const MatrixView& b, const GemmProblem& problem,
               const DeviceModel& device);

// Whether the plan can run and is expected to be faster than those.
bool thin_takes(const ThinPlan& plan, const MatrixView& a, const MatrixView& b,
                const GemmProblem& problem, const DeviceModel& device);

// Outputs of a tile: of kRows, rows by the columns of a warp; of kWide, of a block; of kSums, the
// sums of a block; of kDots, the one row by the columns of a block.
std::pair<int, int> thin_tile(const ThinPlan& plan);

// "thin rows 256x16", "thin sums 8x4", "thin dots 1x8", "thin wide 64x128".
std::string thin_name(const ThinPlan& plan);

}  // namespace fusedops
