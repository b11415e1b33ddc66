#include "csrc/cutlass/select/operands.h"

#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/operand_layout.h"
#include "csrc/cutlass/configs/skinny_configs.h"
#include "csrc/cutlass/configs/sm80_configs.h"
#include "csrc/cutlass/configs/sm90_configs.h"
#include "csrc/cutlass/select/families.h"
#include "csrc/cutlass/select/time_model.h"

namespace fusedops {
namespace {

// TF32 WGMMA reads K-major operands only: above this much work a transposing copy pays.
constexpr double kPackMinWork = 1 << 28;
// So do the 16-bit kernels that store the pre-activation, of B: with so many rows of A a copy is
// little beside the product, which would otherwise be slices of K and a pass.
constexpr int64_t kPackMinRows = 1024;
// Kernels read operands in 16-byte accesses. One of the sm_80 kernels reads 4- and 8-byte elements
// singly: enough for a small product.
constexpr double kWordReadsMaxWork = 1 << 24;
constexpr double kWordsExposed = 1.5;  // words are waited for, beside the time counted
constexpr int64_t kWordTile = 128;     // rows of an operand in a tile of the FP32 FMA kernels
// Rows of an odd length in 16-bit d: WGMMA kernels write padded ones, and a pass copies those. The
// pass moves 4 bytes an element at the speed of memory, 1.4 ps; mma.sync instead of WGMMA takes 3
// ps more for an element and 1024 of K.
constexpr int64_t kPadMinK = 512;
constexpr double kPadMinOutputs = 1 << 20;  // below, the second launch is what counts

double work(const GemmProblem& p) { return double(p.m) * p.n * p.k; }

// Whether the FP32 FMA kernels read the words of an operand one by one in less time than a copy
// takes. `others`: rows of the other operand, tiles of which each read it again.
bool reads_words(const GemmProblem& p, const MatrixView& view, int64_t others,
                 const DeviceModel& device) {
  if (p.dtype != DType::kFloat32 || p.math != MathMode::kFp32) return false;
  const double words = double(view.rows) * view.cols * ceil_div(others, kWordTile);
  const double us = words * kWordInstructions / (128 * double(device.sm_count) * kClockGhz * 1e3);
  return us * kWordsExposed < pack_us(p, view.rows, view.cols, view.col_stride != 1);
}

// Why an operand has to be copied; null, with `operand` filled in, when it is read in place.
// `words`: single ones are read well. `k_major` says why it has to be K-major, where it has to;
// `ragged`: its rows may end anywhere.
const char* pack_reason(const GemmProblem& p, const MatrixView& view, bool words,
                        const char* k_major, bool ragged, GemmOperand& operand) {
  if (!natural_operand(view, operand)) {
    return view.row_stride == 1 || view.col_stride == 1 ? "its rows or columns overlap in memory"
                                                        : "neither of its strides is 1";
  }
  const bool small_words = dtype_bytes(p.dtype) >= 4 && work(p) <= kWordReadsMaxWork;
  // NOTE: the FP32 FMA kernels, too, take rows that end anywhere.
  const bool any_end = ragged || p.math == MathMode::kFp32;
  if (!small_words && !words && !(any_end && begins_aligned(p, operand)) &&
      !sm80_operand_readable(p, operand, view.rows, 16)) {
    return "its address, stride or contiguous extent is not a multiple of 16 bytes";
  }
  return operand.major == Major::kMN ? k_major : nullptr;
}

const char* k_major_reason(const GemmProblem& p, const DeviceModel& device) {
  const bool tf32 = p.math == MathMode::kTf32 && device.hopper() && work(p) >= kPackMinWork;
  return tf32 ? "TF32 WGMMA reads K-major operands" : nullptr;
}
// The reason why B alone must be K-major.
const char* k_major_reason_of_b(const GemmProblem& p, const DeviceModel& device) {
  const bool preact = p.epilogue == Epilogue::kPreact && device.hopper() &&
                      dtype_bytes(p.dtype) == 2 && p.m >= kPackMinRows;
  return preact ? "kernels that store the pre-activation read a K-major operand"
                : k_major_reason(p, device);
}

// Whether the result leaves through padded rows.
bool pads_result(const GemmProblem& p) {
  return p.epilogue == Epilogue::kFused && !p.accumulate && p.n % 8 != 0 && p.k >= kPadMinK &&
         double(p.m) * p.n >= kPadMinOutputs && reinterpret_cast<uintptr_t>(p.d) % 16 == 0;
}

// `ragged`: for kernels that take rows which end within 16 bytes.
OperandPlan plan_for(const MatrixView& a, const MatrixView& b, const GemmProblem& problem,
                     bool ragged, const DeviceModel& device) {
  OperandPlan plan{problem};
  GemmProblem& p = plan.problem;
  const int64_t bytes = dtype_bytes(p.dtype);
  const MatrixView columns = b.transposed();
  plan.pack_a =
      pack_reason(p, a, reads_words(p, a, p.n, device), k_major_reason(p, device), ragged, p.a);
  plan.pack_b = pack_reason(p, columns, reads_words(p, columns, p.m, device),
                            k_major_reason_of_b(p, device), ragged, p.b);
  // NOTE: zero padding of a packed K is harmless only when both sides have it, so a ragged K packs
  // both. The FP32 FMA kernels end K where it ends.
  if (!ragged && p.math != MathMode::kFp32 && p.k % (16 / bytes) != 0 &&
      (plan.pack_a || plan.pack_b)) {
    constexpr const char* kPadding = "K is padded with zeros on both sides";
    if (!plan.pack_a) plan.pack_a = kPadding;
    if (!plan.pack_b) plan.pack_b = kPadding;
  }
  const GemmOperand packed{nullptr, packed_ld(p.k, bytes), Major::kK};
  if (plan.pack_a) p.a = packed;
  if (plan.pack_b) p.b = packed;
  if (plan.pack_a && plan.pack_b) p.k = packed.ld;
  if (ragged && pads_result(p)) {
    plan.pads_d = true;
    p.d = nullptr;
    p.bias = nullptr;
    p.ldd = packed_ld(p.n, bytes);
  }
  return plan;
}

// Whether a WGMMA kernel takes what was planned for it.
bool served(const GemmProblem& p) {
  if (sm90_refusal(p) != nullptr) return false;
  for (int i = 0; i < kNumSm90Configs; ++i) {
    if (sm90_compiled(i, p.dtype, p.math, p.epilogue, p.a.major, p.b.major)) return true;
  }
  return false;
}

}  // namespace

bool begins_aligned(const GemmProblem& p, const GemmOperand& operand) {
  return reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 &&
         operand.ld * dtype_bytes(p.dtype) % 16 == 0;
}

bool natural_operand(const MatrixView& view, GemmOperand& operand) {
  const auto [data, rows, k, row_stride, k_stride] = view;
  // NOTE: a stride over an extent of 1 is never used; any legal value will do.
  if (k_stride == 1 && (row_stride >= k || rows == 1)) {
    operand = {data, rows == 1 ? round_up(k, 16) : row_stride, Major::kK};
    return true;
  }
  if (row_stride == 1 && (k_stride >= rows || k == 1)) {
    operand = {data, k == 1 ? round_up(rows, 16) : k_stride, Major::kMN};
    return true;
  }
  return false;
}

OperandPlan plan_operands(const MatrixView& a, const MatrixView& b, const GemmProblem& problem,
                          const DeviceModel& device) {
  // NOTE: up to so many rows the skinny kernels are faster, copies included.
  if (device.hopper() && is_half(problem.dtype) && problem.m > skinny::kMaxRows) {
    const OperandPlan plan = plan_for(a, b, problem, true, device);
    if (served(plan.problem)) return plan;
  }
  return plan_for(a, b, problem, false, device);
}

}  // namespace fusedops
