#include "csrc/cutlass/select/time_model.h"

#include <algorithm>
#include <cmath>

#include "csrc/common/int_math.h"

namespace fusedops {
namespace {

// Of two times at once: from the longer one (power infinite) to their sum (1).
double overlap(double a, double b, double power) {
  return std::pow(std::pow(a, power) + std::pow(b, power), 1 / power);
}

int64_t steps_of(const GemmProblem& p, int64_t k) { return ceil_div(k, 128 / operand_bytes(p)); }

}  // namespace

bool is_costly(Activation activation) {
  return activation != Activation::kNone && activation != Activation::kRelu;
}

int output_bytes(const GemmProblem& p) {
  if (p.epilogue == Epilogue::kAccumulator) return 4;
  const int matrices = p.epilogue == Epilogue::kPreact ? 2
                       : p.epilogue == Epilogue::kGrad ? 2 + is_costly(p.activation)
                                                       : 1;
  return static_cast<int>(dtype_bytes(p.dtype)) * matrices;
}

double dram_bytes(const GemmProblem& p) {
  const double operands = double(p.m) * p.k + double(p.k) * p.n;
  return operands * operand_bytes(p) + double(p.m) * p.n * output_bytes(p);
}

TileCount count_tiles(const GemmProblem& p, const GemmConfig& c, const DeviceModel& device) {
  const int64_t clusters_m = ceil_div(ceil_div(p.m, c.tile_m), c.cluster_m);
  const int64_t clusters_n = ceil_div(ceil_div(p.n, c.tile_n), c.cluster_n);
  return {clusters_m * clusters_n, std::max(1, device.sm_count / (c.cluster_m * c.cluster_n))};
}

TileSharing sharing_of(const GemmProblem& p, const TileCount& tiles) {
  return share_tiles(tiles.last_wave(), tiles.slots, steps_of(p, p.k));
}

namespace {

struct TileCost {
  double mainloop;  // cycles per tile
  double epilogue;
};

// Operand rows that a CTA reads for a step of its tile: a pair shares one operand.
double rows_of_a(const GemmConfig& c) { return c.tile_m / double(c.cluster_n); }
double rows_of_b(const GemmConfig& c) { return c.tile_n / double(c.cluster_m); }

// Bytes of a step's rows of both operands; `cold`: how much more those of the larger one cost.
double step_bytes(const GemmProblem& p, double rows_a, double rows_b, double cold) {
  const double larger = std::clamp(std::log2(double(p.n) / double(p.m)) / 4, -1.0, 1.0);
  return 128 * (rows_a * (1 - cold * larger) + rows_b * (1 + cold * larger));
}

// The extent along which an operand is contiguous.
int64_t line_of_a(const GemmProblem& p) { return p.a.major == Major::kK ? p.k : p.m; }
int64_t line_of_b(const GemmProblem& p) { return p.b.major == Major::kK ? p.k : p.n; }

// Whether lines begin inside those of 128 bytes of L2, or inside sectors of 32.
bool is_cut(const GemmProblem& p, int64_t line, int bytes) {
  return line * operand_bytes(p) % bytes != 0;
}

double l2_cycles(const GemmProblem& p, const GemmConfig& c) {
  const auto cost = [&](int64_t line) {
    return 1 + (is_cut(p, line, 128) ? kCutLine * c.cluster_m * c.cluster_n : 0) +
           (is_cut(p, line, 32) ? kCutSector : 0);
  };
  return step_bytes(p, rows_of_a(c) * cost(line_of_a(p)), rows_of_b(c) * cost(line_of_b(p)),
                    kCold) /
         kL2BytesPerCycle;
}

TileCost tile_cost(const GemmProblem& p, const GemmConfig& c, int64_t k) {
  const double steps = static_cast<double>(ceil_div(k, 128 / operand_bytes(p)));
  const double mma = double(c.tile_m) * c.tile_n * 64 / kMmaPerCycle;
  const double shared =
      (64.0 + c.tile_n) * 128 * c.tile_m / 64 /
      (c.schedule == Schedule::kPingpong ? kSharedBytesPerCycle : kSharedBytesOfTwo);
  const double hot = kHotRowCycles * std::max(0.0, 1.0 - double(p.m) / c.tile_m) *
                     std::pow(static_cast<double>(ceil_div(p.n, c.tile_n)), kHotRowPower);
  const double epilogue =
      kEpilogueCycles + double(c.tile_m) * c.tile_n *
                            (kEpilogueByteCycles * output_bytes(p) + kEpilogueElementCycles +
                             (is_costly(p.activation) ? kActivationCycles : 0) +
                             (p.epilogue == Epilogue::kGrad ? kGradientCycles : 0));
  return {steps * (std::max({mma, shared, l2_cycles(p, c)}) + hot), epilogue};
}

// Cycles of a shared last wave but for its epilogue.
double shared_cycles(const GemmProblem& p, const GemmConfig& c, const TileCount& tiles,
                     double mainloop) {
  const TileSharing s = sharing_of(p, tiles);
  const double part = double(s.part_steps) / double(steps_of(p, p.k)) * mainloop;
  const double exchange = kExchangeCycles + kExchangeByteCycles * c.tile_m * c.tile_n * 4;
  const double turns = double(ceil_div(tiles.last_wave() * s.parts, s.helpers));
  // The other warpgroup multiplies while one sends.
  const bool hidden = c.schedule == Schedule::kPingpong;
  const double helper = turns * (part + (hidden ? 0 : exchange)) + (hidden ? exchange : 0);
  return std::max(helper, mainloop - double(s.parts) * part) + double(s.parts) * exchange;
}

}  // namespace

double sm90_us(const GemmProblem& p, const GemmConfig& c, int splits, const DeviceModel& device) {
  const TileCost cost = tile_cost(p, c, ceil_div(p.k, std::max(splits, 1)));
  const TileCount tiles = count_tiles(p, c, device);
  const bool pingpong = c.schedule == Schedule::kPingpong;
  const double waves = static_cast<double>(ceil_div(tiles.all * std::max(splits, 1), tiles.slots));
  // Pingpong hides every epilogue but the last behind the other tile's mainloop, unless that is the
  // shorter one.
  const double wave = pingpong ? std::max(cost.mainloop, cost.epilogue * kExposedEpilogue)
                               : cost.mainloop + cost.epilogue * kCooperativeEpilogue;
  const double last =
      splits == kSharedWave ? shared_cycles(p, c, tiles, cost.mainloop) : cost.mainloop;
  const double cycles =
      (waves - 1) * wave + last + cost.epilogue * (pingpong ? 1 : kCooperativeEpilogue);
  const double sms = (kFillCycles + cycles) / (kClockGhz * 1e3);
  const double dram = dram_bytes(p) / kDramBytesPerUs;
  double us = kLaunchUs + (splits > 1 ? std::max(sms, dram) : overlap(sms, dram, kDramOverlap));
  if (splits > 1) us += kReduceUs + double(p.m) * p.n * splits * 4 / (2 * kDramBytesPerUs);
  return us;
}

namespace {

// The FP32 FMA kernels: bound by instruction issue (smaller register tiles spend more of it on
// other things than FMAs) or by memory. Not fitted.
double simt_us(const GemmProblem& p, const GemmConfig& c, int splits, const DeviceModel& device) {
  const double fma_per_cycle = device.capability == 80 ? 64 : 128;
  const int outputs = c.tile_m * c.tile_n;
  const double efficiency = outputs >= 128 * 128 ? kSimtLarge
                            : outputs >= 64 * 64 ? kSimtMedium
                                                 : kSimtSmall;
  const double tiles = double(ceil_div(p.m, c.tile_m)) * ceil_div(p.n, c.tile_n) * splits;
  const double waves = std::ceil(tiles / device.sm_count);
  const double fma = double(outputs) * ceil_div(p.k, splits) / (fma_per_cycle * efficiency);
  const double bytes = (double(p.m) * p.k + double(p.k) * p.n + double(p.m) * p.n) * 4;
  double us = kLaunchUs +
              std::max(waves * (kTileCycles + fma) / (kClockGhz * 1e3), bytes / kDramBytesPerUs);
  if (splits > 1) us += kReduceUs + double(p.m) * p.n * splits * 4 / (2 * kDramBytesPerUs);
  return us;
}

// The least time by the data sheets: multiply-adds per SM and nominal cycle, DRAM of Hopper, the
// A100 and the rest of Ampere and Ada.
double sm80_floor_us(const GemmProblem& p, const DeviceModel& device) {
  const bool a100 = device.capability == 80;
  const double fp64 = device.capability % 10 != 0 ? 2 : a100 ? 56 : 128;
  const double rate = p.dtype == DType::kFloat64   ? fp64
                      : p.dtype == DType::kFloat32 ? kMmaPerCycle * kSm80Tf32
                                                   : kMmaPerCycle * kSm80Half;
  const double mma = double(p.m) * p.n * p.k / (rate * device.sm_count * kClockGhz * 1e3);
  const double bytes_per_us = device.capability >= 90 ? kDramBytesPerUs
                              : a100                  ? kA100DramBytesPerUs
                                                      : kOtherDramBytesPerUs;
  return std::max(mma, dram_bytes(p) / bytes_per_us);
}

}  // namespace

// The mma.sync family: one block per SM at a time, about 60 % of the WGMMA rate. The floor is the
// same for every kernel: it leaves their order as it is.
double sm80_us(const GemmProblem& p, const GemmConfig& c, int splits, const DeviceModel& device) {
  if (p.math == MathMode::kFp32) return simt_us(p, c, splits, device);
  const double tiles = double(ceil_div(p.m, c.tile_m)) * ceil_div(p.n, c.tile_n) * splits;
  const double waves = std::max(1.0, std::ceil(tiles / device.sm_count));
  const double mma =
      double(c.tile_m) * c.tile_n * ceil_div(p.k, splits) / (kMmaPerCycle * kSm80Half);
  const double us = waves * (kTileCycles + mma) / (kClockGhz * 1e3) + (splits > 1 ? kReduceUs : 0);
  return kLaunchUs + overlap(us, sm80_floor_us(p, device), kDramOverlap);
}

// The kernels for few rows, fitted to skinny_sweep.csv. Bound by reading b from DRAM, by the bytes
// that a block keeps in flight, or by its WGMMAs; then the sums of a pair and the epilogue.
double skinny_us(const GemmProblem& p, const GemmConfig& c, const DeviceModel& device) {
  const double sms = device.sm_count;
  const double cols = double(p.m <= 8 ? 8 : p.m <= 16 ? 16 : round_up(p.m, 32));
  const double blocks = double(ceil_div(p.n, c.tile_n) * c.cluster_n);
  const double waves = std::ceil(blocks / (sms * c.tile_k));
  const double per_sm = std::min<double>(c.tile_k, std::ceil(blocks / sms));
  const double pieces = double(ceil_div(ceil_div(p.m, 8), c.cluster_n));
  const double sent = c.cluster_n > 1 ? pieces * c.tile_n * 32 : 0;

  const double bytes = (c.tile_n + cols) * 2 * p.k / c.cluster_n;
  const double in_flight = (228.0 / c.tile_k - 1) * 1024 - sent;
  const double read = bytes / std::min(in_flight / kSkinnyLatencyUs, kSkinnySmBytesPerUs / per_sm);
  const double mma = double(p.k) / c.cluster_n / 16 * (c.tile_n / 64) *
                     std::max(cols / 2, kMinMmaCycles) * per_sm / kSkinnyCyclesPerUs;
  // Blocks spread over pairs of SMs first, and half of all SMs can read at the full rate.
  const bool halves = blocks <= sms / 2;
  const double busy = std::min(1.0, blocks / (halves ? sms / 2 : sms));
  const double dram = double(p.n) * p.k * 2 / kSkinnyDramBytesPerUs / std::pow(busy, kIdlePower);
  double main = overlap(dram, waves * std::max(read, mma), kSkinnyOverlap);
  if (per_sm > 1) main *= 1 + kUneven * cols / 128;
  if (halves) main *= kUnsteady;
  return kSkinnyLaunchUs + (waves - 1) * kSkinnyWaveUs + main + kPieceUs * pieces +
         (c.cluster_n > 1 ? kPairUs + sent / kPairBytesPerUs : 0);
}

// The kernels of one wave of clusters, fitted to the choice between them and sm90_us. WGMMAs of
// few columns wait for their issue; mainloops share L2 with those of other SMs; a row that is
// loaded for several blocks costs more than one for one block, wherever it lies; what blocks send
// each other and what they store come on top.
double cluster_us(const GemmProblem& p, const GemmConfig& c, const TileCluster& cluster,
                  double tiles, const DeviceModel& device) {
  const bool shared = cluster.tiles() > 1;
  const auto cost = [&](Major major, int64_t line) {
    const double minor = major == Major::kMN ? kMinor : 0;
    if (shared) return kSharedRow + minor;
    return 1 + minor +
           (is_cut(p, line, 32)    ? kClusterCutSector
            : is_cut(p, line, 128) ? kClusterCutLine
                                   : 0);
  };
  const double rows_a = double(c.tile_m) / cluster.n * cost(p.a.major, line_of_a(p));
  const double rows_b = double(c.tile_n) / cluster.m * cost(p.b.major, line_of_b(p));
  const double l2 = step_bytes(p, rows_a, rows_b, kClusterCold) / kClusterL2BytesPerCycle *
                    (1 + kCrowding * (tiles * c.cluster_n / device.sm_count - 1));
  const double outputs = double(c.tile_m) * c.tile_n;
  const double mma = std::max(outputs * 64 / kClusterMmaPerCycle, kIssueCycles);
  const double steps = static_cast<double>(ceil_div(ceil_div(p.k, 64), c.cluster_n));
  const double cycles = steps * overlap(mma, l2, kClusterOverlap);
  const double sent = outputs * 4 * (c.cluster_n - 1) / c.cluster_n;
  const double stored = outputs / c.cluster_n * output_bytes(p);
  return (c.cluster_n > 1 ? kClusterSplitUs
          : shared        ? kClusterSharedUs
                          : kClusterAloneUs) +
         std::max(cycles / (kClockGhz * 1e3), dram_bytes(p) / kDramBytesPerUs) +
         sent / kSentBytesPerUs + stored / kStoredBytesPerUs;
}

}  // namespace fusedops
