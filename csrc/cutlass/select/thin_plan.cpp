#include "csrc/cutlass/select/thin_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "csrc/cutlass/select/plan_cache.h"
#include "csrc/cutlass/select/time_model.h"

namespace fusedops {
namespace {

// By hand, from 56 products by rows and 27 sums in graphs on an H200 (drawn shapes: N and K 1 to
// 1201, 5000 to 4e6 rows). The part of the bandwidth that streams reach; what a thread does for a
// unit that comes and one that goes, in instructions of which an SM would issue 128 a cycle;
// multiply-adds of an SM and cycle.
constexpr double kStreamed = 0.65, kStreamOverlap = 1.55;
constexpr double kUnitInstructions = 68, kStoredWordInstructions = 95, kHalvesInstructions = 125;
// What a run's 16 bytes take.
constexpr double kRunInstructions = 48, kRunOfHalvesInstructions = 240;
constexpr double kActivationInstructions = 20;  // of an element
constexpr double kRowsFma = 90, kRowsMma = 183, kSumsFma = 81, kSumsMma = 445;
// The second: of the blocks' sums. The third: of an element of B for each thread of a block.
constexpr double kThinLaunchUs = 4, kSumsUs = 3, kLoadUs = 0.08;
constexpr double kAlone = 0.5;      // the rate of an SM with one block that has room for more
constexpr int kMostBlocksOfSm = 4;  // by registers
constexpr int kSharedOfOther = 96 * 1024;  // of GPUs beside the A100 and Hopper
constexpr bool kDotsKernel = true;         // false: one row keeps to the other kernels
constexpr bool kWideKernel = true;         // false: few features keep to the other kernels
constexpr int64_t kMostWideN = int64_t{1} << 24;
// kWide, fitted to 57 products on an H100 and an H200, which they meet within 8 % (rms): what a
// warp issues for an item, alone, for each 16 of K and for a costly activation; for lines of d,
// whose ends are units or are not, or for each 256 units of a run; for 16 of K of x, in units or
// not; for a tile.
constexpr double kWideItemInstructions = 110, kWideStepInstructions = 28,
                 kWideActInstructions = 204;
// In fp32 16 of K, and by how much all of it takes longer (28 products on an H200); up to 128
// columns, which `thin rows` writes as one run, that is faster.
constexpr double kWideFmaInstructions = 320, kWideFp32Factor = 1.25;
constexpr double kWideLines = 43, kWideCutLines = 107, kWideRunUnits = 63;
constexpr double kWideUnitsOfX = 56, kWideElementsOfX = 186, kWideTileInstructions = 116;
// Cycles of a tile alone, and for each item of a warp; a launch, and 256 units of w.
constexpr double kWideAloneCycles = 3240, kWideItemCycles = 45, kWideUs = 1.65, kWideLoadUs = 1.07;
constexpr double kWideOverlap = 3, kWideMargin = 1.05;
// TMA brings rows of x below 64 bytes slowly, which few columns do not hide: of at most 200 columns
// products by K = 8, 16 and 24 took 2.9, 1.45 to 1.77 and 1.53 times what the model of the sm90
// kernels says.
constexpr int64_t kShortRow = 32, kFewShortRows = 256;
constexpr double kShortRowsFactor = 12;
constexpr double kDotsUs = 3.2, kDotsStreamed = 0.8, kDotsSmBytesPerUs = 1.2e5;

// Lines of a matrix, or false where its elements lie apart along both sides.
bool lines_of(const MatrixView& view, thin::Lines* lines) {
  const bool rows = view.col_stride == 1 || view.cols == 1;
  if (!rows && view.row_stride != 1 && view.rows != 1) return false;
  *lines = {view.data, rows ? view.row_stride : view.col_stride, !rows};
  return true;
}

const char* common_refusal(const GemmProblem& p, const DeviceModel& device) {
  constexpr int64_t kMost = int64_t{1} << 40;  // rows: addresses and tiles stay in 64 bits
  if (p.dtype == DType::kFloat64) return "fp64";
  if (p.m < 1 || p.n < 1 || p.k < 1) return "an extent is zero";
  if (p.m > kMost || p.k > kMost) return "an extent is too large";
  if (p.accumulate || p.ldd != p.n) return "the result is added to d, or d has gaps";
  if (reinterpret_cast<uintptr_t>(p.d) % 4 != 0) return "d is not aligned to 4 bytes";
  return nullptr;
}

int shared_limit(const DeviceModel& device) {
  const bool large = device.capability == 80 || device.capability == 90;
  return large ? thin::kSharedLimit : kSharedOfOther;
}

// ---- times ----

double dram_us(double bytes) { return bytes / (kStreamed * kDramBytesPerUs); }

double sm_us(double instructions, double cycles, const DeviceModel& device) {
  return (instructions / 128 + cycles) / (device.sm_count * kClockGhz * 1e3);
}

double copy_instructions(const thin::TileLayout& tile, double bytes) {
  return bytes / (tile.wide ? 16 : 4) * kUnitInstructions;
}

double store_instructions(const GemmProblem& p, const thin::RowsPlan& plan, double bytes) {
  const bool half = is_half(p.dtype);
  if (plan.parts == 1) return bytes / 16 * (half ? kRunOfHalvesInstructions : kRunInstructions);
  return bytes / 4 * (half ? kHalvesInstructions : kStoredWordInstructions);
}

// The part of the GPU's rate that the blocks of a product reach: the last wave of them, or the only
// one, leaves SMs idle or with fewer blocks than hide their latencies.
double busy_part(const GemmProblem& p, const thin::RowsPlan& plan, const DeviceModel& device) {
  const double blocks = double(ceil_div(p.m, plan.tile_rows)) * plan.parts;
  const int of_sm = std::clamp(220 * 1024 / (plan.bytes() + 1024), 1, kMostBlocksOfSm);
  const double room = double(of_sm) * device.sm_count, waves = std::ceil(blocks / room);
  if (waves > 1) return blocks / (waves * room);
  const double each = blocks / device.sm_count;
  if (of_sm == 1 || each <= 1) return std::min(1.0, each) * (of_sm == 1 ? 1 : kAlone);
  return kAlone + (1 - kAlone) * (each - 1) / (of_sm - 1);
}

double rows_us(const GemmProblem& p, const thin::RowsPlan& plan, const DeviceModel& device) {
  const double x = double(p.m) * p.k * dtype_bytes(p.dtype), d = dram_bytes(p) - x;
  const double act = is_costly(p.activation) ? double(p.m) * p.n * kActivationInstructions : 0;
  const double instructions =
      copy_instructions(plan.x, x * plan.parts) + store_instructions(p, plan, d) + act;
  const double columns = double(plan.groups) * plan.group * plan.parts;
  const double rate = is_half(p.dtype) ? kRowsMma : kRowsFma;
  const double cycles = double(p.m) * columns * plan.padded_k / rate;
  const double us = sm_us(instructions, cycles, device) / busy_part(p, plan, device);
  const double load = kLoadUs * double(plan.groups) * plan.group * plan.padded_k / thin::kThreads;
  return kThinLaunchUs + load + overlap(dram_us(x + d), us, kStreamOverlap);
}

double wide_us(const GemmProblem& p, const thin::Lines& x, const DeviceModel& device) {
  const thin::WidePlan plan = thin::wide_plan(p.dtype, p.n, p.k);
  const double warps = thin::kWideThreads / 32, steps = plan.padded_k / 16.0;
  const double share = plan.rows / 16.0 * plan.columns() / thin::kWideItem / warps;
  const double most = std::ceil(share), items = (share + most) / 2;  // of a warp: others fill in
  const double act = is_costly(p.activation) ? kWideActInstructions : 0;
  const double lines =
      plan.line_units == 0
          ? double(plan.rows) * p.n * plan.element / (16 * thin::kWideThreads) * kWideRunUnits
          : double(plan.rows << plan.lane_shift()) / thin::kWideThreads *
                (p.n * plan.element % 16 == 0 ? kWideLines : kWideCutLines);
  const bool units = thin::reads_units(p.dtype, x, p.k);
  const double step = is_half(p.dtype) ? kWideStepInstructions : kWideFmaInstructions;
  const double passes = p.epilogue == Epilogue::kPreact ? 2 : 1;
  const double issued = passes * (items * (kWideItemInstructions + steps * step) + lines) +
                        items * act + steps * (units ? kWideUnitsOfX : kWideElementsOfX) +
                        kWideTileInstructions;
  const double each = double(ceil_div(p.m, plan.rows)) * plan.parts / device.sm_count;
  const double room = std::min((plan.padded_k < 64 ? 4 : 3) - (plan.element == 4),
                               227 * 1024 / (plan.bytes() + 1024));
  const double alone = kWideAloneCycles + most * kWideItemCycles;
  const double tile = std::max(issued * warps / 4, alone / std::clamp(each, 1.0, room));
  const double load =
      kWideLoadUs * plan.columns() * plan.padded_k * plan.element / (16 * thin::kWideThreads);
  const double streams = dram_bytes(p) / kDramBytesPerUs;
  const double us = std::max(each, 1.0) * tile / (kClockGhz * 1e3);
  return (kWideUs + load + overlap(us, streams, kWideOverlap)) *
         (is_half(p.dtype) ? 1 : kWideFp32Factor);
}

double sums_us(const GemmProblem& p, const thin::SumsPlan& plan, const DeviceModel& device) {
  const double rows = double(p.k), size = double(dtype_bytes(p.dtype));
  // Each block of sums brings its own columns: what they share comes once from DRAM.
  const double instructions = copy_instructions(plan.a, rows * p.m * plan.blocks_k * size) +
                              copy_instructions(plan.b, rows * p.n * plan.blocks_n * size);
  const double owners = is_half(p.dtype) ? thin::kSumThreads / 32 : thin::kSumThreads;
  const double idle = owners / (plan.tiles() * plan.splits);
  const double sums =
      double(plan.tiles()) * plan.own_n * plan.own_k * plan.blocks_n * plan.blocks_k;
  const double cycles = rows * sums * idle / (is_half(p.dtype) ? kSumsMma : kSumsFma);
  return kThinLaunchUs + kSumsUs + dram_us(dram_bytes(p)) + sm_us(instructions, cycles, device);
}

double dots_us(const GemmProblem& p, const thin::DotsPlan& plan, const DeviceModel& device) {
  const double unit = 16.0 / double(dtype_bytes(p.dtype)), units = double(p.n) * p.k / unit;
  const double of_x = 1 + (is_half(p.dtype) ? unit : 0);
  const double of_unit = 4 + of_x + unit + of_x / plan.rows;
  const double sms = std::min<double>(device.sm_count, double(plan.blocks) * plan.cluster);
  const double bytes = dram_bytes(p);
  const double streams =
      std::max(bytes / (kDotsStreamed * kDramBytesPerUs), bytes / (sms * kDotsSmBytesPerUs));
  const double us = sm_us(units * of_unit, 0, device) * device.sm_count / sms;
  return kDotsUs + overlap(streams, us, kStreamOverlap);
}

// ---- what runs ----

// The K up to which rows stream past any N: FMAs of fp32 gain where Tensor Cores do not.
int64_t few_of_k(const GemmProblem& p) { return is_half(p.dtype) ? thin::kFew : 2 * thin::kFew; }

// Why no kernel streams the rows of A, or null.
const char* rows_refusal(const MatrixView& a, const MatrixView& b, const GemmProblem& p,
                         thin::Rows* rows) {
  rows->dtype = p.dtype;
  rows->m = p.m, rows->n = p.n, rows->k = p.k;
  rows->w = b.data;
  rows->w_stride_n = b.col_stride;
  rows->w_stride_k = b.row_stride;
  if (p.epilogue != Epilogue::kFused && p.epilogue != Epilogue::kPreact) {
    return "no kernel with this epilogue";
  }
  if (!lines_of(a, &rows->x)) return "neither stride of A is 1";
  const bool aligned = reinterpret_cast<uintptr_t>(p.preact) % 4 == 0;
  return aligned ? nullptr : "preact is not aligned to 4 bytes";
}

void plan_rows(const MatrixView& a, const MatrixView& b, const GemmProblem& p,
               const DeviceModel& device, ThinPlan& plan) {
  plan.kernel = ThinKernel::kRows;
  plan.rejected = rows_refusal(a, b, p, &plan.rows);
  if (!plan.rejected &&
      ((p.n > thin::kFew && p.k > few_of_k(p)) || std::max(p.n, p.k) > thin::kMostLong)) {
    plan.rejected = "neither N nor K is at most 32, with the other one at most 4096";
  }
  if (plan.rejected) return;
  const thin::RowsPlan rows = thin::rows_plan(p.dtype, plan.rows.x, p.n, p.k);
  if (rows.bytes() > shared_limit(device)) {
    plan.rejected = "B does not fit the shared memory";
    return;
  }
  plan.expected_us = rows_us(p, rows, device);
}

void plan_wide(const MatrixView& a, const MatrixView& b, const GemmProblem& p,
               const DeviceModel& device, ThinPlan& plan) {
  const int64_t least = is_half(p.dtype) ? thin::kLeastWide : thin::kPartColumns + 1;
  if (!kWideKernel || p.k > thin::kMostWideK || p.n < least || p.n > kMostWideN) return;
  thin::Rows rows{};
  if (rows_refusal(a, b, p, &rows)) return;
  if (thin::wide_plan(p.dtype, p.n, p.k).bytes() > shared_limit(device)) return;
  const double us = wide_us(p, rows.x, device);
  if (!plan.rejected && plan.expected_us <= us) return;
  plan = {};
  plan.kernel = ThinKernel::kWide;
  plan.expected_us = us;
  plan.rows = rows;
}

void plan_sums(const MatrixView& a, const MatrixView& b, const GemmProblem& p,
               const DeviceModel& device, ThinPlan& plan) {
  plan.kernel = ThinKernel::kSums;
  plan.sums = {.dtype = p.dtype, .m = p.k, .n = p.m, .k = p.n};
  plan.sums.fp32_out = p.epilogue == Epilogue::kAccumulator || p.dtype == DType::kFloat32;
  const bool plain = p.bias == nullptr && p.activation == Activation::kNone;
  if ((p.epilogue != Epilogue::kFused || !plain) && p.epilogue != Epilogue::kAccumulator) {
    plan.rejected = "no kernel with this epilogue";
  } else if (std::min(p.m, p.n) > thin::kFew || std::max(p.m, p.n) > thin::kMostLong) {
    plan.rejected = "neither M nor N is at most 32, with the other one at most 4096";
  } else if (!lines_of(a.transposed(), &plan.sums.a) || !lines_of(b, &plan.sums.b)) {
    plan.rejected = "neither stride of an operand is 1";
  }
  if (plan.rejected) return;
  const thin::SumsPlan sums =
      thin::sums_plan(p.dtype, plan.sums.a, plan.sums.b, plan.sums.n, plan.sums.k);
  if (sums.bytes() > shared_limit(device)) {
    plan.rejected = "a tile does not fit the shared memory";
    return;
  }
  plan.expected_us = sums_us(p, sums, device);
}

// One row of A, and columns of B that are contiguous.
bool are_dots(const MatrixView& a, const MatrixView& b, const GemmProblem& p) {
  const bool lines = (a.col_stride == 1 || p.k == 1) && (b.row_stride == 1 || p.k == 1);
  return kDotsKernel && p.m == 1 && lines && p.n <= thin::kMostDotColumns &&
         p.k <= thin::kMostDotK &&
         (p.epilogue == Epilogue::kFused || p.epilogue == Epilogue::kPreact);
}

void plan_dots(const MatrixView& a, const MatrixView& b, const GemmProblem& p,
               const DeviceModel& device, ThinPlan& plan) {
  plan.kernel = ThinKernel::kDots;
  plan.dots = {.dtype = p.dtype, .n = p.n, .k = p.k};
  plan.dots.x = a.data;
  plan.dots.w = b.data;
  plan.dots.w_stride = b.col_stride;
  plan.dots_plan = thin::dots_plan(plan.dots, device.sm_count, device.hopper());
  if (thin::dots_bytes(plan.dots_plan) > shared_limit(device)) {
    plan.rejected = "A does not fit the shared memory";
    return;
  }
  plan.expected_us = dots_us(p, plan.dots_plan, device);
}

}  // namespace

ThinPlan plan_thin(const MatrixView& a, const MatrixView& b, const GemmProblem& p,
                   const DeviceModel& device) {
  ThinPlan plan;
  plan.rejected = common_refusal(p, device);
  if (plan.rejected) return plan;
  if (are_dots(a, b, p)) {
    plan_dots(a, b, p, device, plan);
  } else if (p.m >= thin::kMinRows) {
    plan_rows(a, b, p, device, plan);
    plan_wide(a, b, p, device, plan);
  } else if (p.k >= thin::kMinRows) {
    plan_sums(a, b, p, device, plan);
  } else {
    plan.rejected = "neither M nor K is at least 4096, nor is M 1";
    if (p.m >= thin::kWideLeastRows) plan_wide(a, b, p, device, plan);
  }
  return plan;
}

double gemm_us(const MatrixView& a, const MatrixView& b, const GemmProblem& problem,
               const DeviceModel& device) {
  const OperandPlan operands = plan_operands(a, b, problem, device);
  const GemmPlan plan = select_gemm_cached(operands.problem, device);
  if (plan.config < 0) return std::numeric_limits<double>::infinity();
  const bool across_a = a.col_stride != 1, across_b = b.row_stride != 1;
  const bool short_rows = device.hopper() && is_half(problem.dtype) && problem.k < kShortRow &&
                          problem.n <= kFewShortRows;
  return plan.expected_us * (short_rows ? 1 + kShortRowsFactor / double(problem.k) : 1) +
         (operands.pack_a ? pack_us(problem, problem.m, problem.k, across_a) : 0) +
         (operands.pack_b ? pack_us(problem, problem.k, problem.n, across_b) : 0) +
         (operands.pads_d ? pack_us(problem, problem.m, problem.n) : 0);
}

bool thin_takes(const ThinPlan& plan, const MatrixView& a, const MatrixView& b,
                const GemmProblem& problem, const DeviceModel& device) {
  const double margin = plan.kernel == ThinKernel::kWide ? kWideMargin : 1;
  return plan.rejected == nullptr && plan.expected_us * margin < gemm_us(a, b, problem, device);
}

std::pair<int, int> thin_tile(const ThinPlan& plan) {
  if (plan.kernel == ThinKernel::kDots) {
    return {1, int(plan.dots_plan.block_rows())};
  }
  if (plan.kernel == ThinKernel::kRows) {
    const thin::Rows& p = plan.rows;
    const thin::RowsPlan rows = thin::rows_plan(p.dtype, p.x, p.n, p.k);
    return {rows.tile_rows, rows.group};
  }
  if (plan.kernel == ThinKernel::kWide) {
    const thin::WidePlan wide = thin::wide_plan(plan.rows.dtype, plan.rows.n, plan.rows.k);
    return {wide.rows, wide.part};
  }
  const thin::Sums& p = plan.sums;
  const thin::SumsPlan sums = thin::sums_plan(p.dtype, p.a, p.b, p.n, p.k);
  return {sums.block_n, sums.block_k};
}

std::string thin_name(const ThinPlan& plan) {
  const auto [rows, columns] = thin_tile(plan);
  constexpr const char* kNames[] = {"rows", "sums", "dots", "wide"};
  return std::string("thin ") + kNames[int(plan.kernel)] + ' ' + std::to_string(rows) + 'x' +
         std::to_string(columns);
}

}  // namespace fusedops
