// The TMA + WGMMA kernels that are compiled: data for selection (host) and for instances/sm90_*.cu
// (device). tile_k counts 2-byte elements: every kernel stages 128 bytes of K.
#pragma once

#include "csrc/cutlass/configs/config.h"

namespace fusedops {

namespace sm90 {

// A letter pair per operand layout: T = K contiguous in A / N = K contiguous in B, as BLAS names
// them.
inline constexpr unsigned kForward = variant_bit(Epilogue::kFused, Major::kK, Major::kK);
inline constexpr unsigned kPreact = variant_bit(Epilogue::kPreact, Major::kK, Major::kK);
inline constexpr unsigned kResidual = variant_bit(Epilogue::kResidual, Major::kK, Major::kK);
inline constexpr unsigned kDgradResidual = variant_bit(Epilogue::kResidual, Major::kK, Major::kMN);
inline constexpr unsigned kMoments = variant_bit(Epilogue::kMoments, Major::kK, Major::kK);
inline constexpr unsigned kNorm = variant_bit(Epilogue::kNorm, Major::kK, Major::kK);
inline constexpr unsigned kDgrad = variant_bit(Epilogue::kFused, Major::kK, Major::kMN);
inline constexpr unsigned kGrad = variant_bit(Epilogue::kGrad, Major::kK, Major::kMN);
inline constexpr unsigned kWgrad = variant_bit(Epilogue::kFused, Major::kMN, Major::kMN);
inline constexpr unsigned kBothTransposed = variant_bit(Epilogue::kFused, Major::kMN, Major::kK);
inline constexpr unsigned kForwardSum = variant_bit(Epilogue::kAccumulator, Major::kK, Major::kK);
inline constexpr unsigned kDgradSum = variant_bit(Epilogue::kAccumulator, Major::kK, Major::kMN);
inline constexpr unsigned kWgradSum = variant_bit(Epilogue::kAccumulator, Major::kMN, Major::kMN);

// NOTE: tiles of 160 and 192 have too many accumulators for a second tile in the epilogue (1.07 and
// 1.3 times the time with kPreact on H200).
inline constexpr unsigned kPlain = kForward | kDgrad | kWgrad | kWgradSum;
inline constexpr unsigned kAll =
    kPlain | kPreact | kResidual | kDgradResidual | kMoments | kNorm | kGrad;
inline constexpr unsigned kTf32 = 1u << 30;  // the kK, kK forms exist in TF32 too

}  // namespace sm90

inline constexpr GemmConfig kSm90Configs[] = {
    {128, 128, 64, 1, 1, Schedule::kPingpong, sm90::kAll | sm90::kBothTransposed | sm90::kTf32},
    {128, 128, 64, 2, 1, Schedule::kPingpong, sm90::kAll},
    {128, 160, 64, 1, 1, Schedule::kPingpong, sm90::kForward},
    {128, 160, 64, 2, 1, Schedule::kPingpong, sm90::kForward},
    {128, 176, 64, 1, 1, Schedule::kPingpong, sm90::kForward},
    {128, 192, 64, 1, 1, Schedule::kPingpong, sm90::kPlain},
    {128, 192, 64, 2, 1, Schedule::kPingpong, sm90::kPlain},
    {192, 128, 64, 2, 1, Schedule::kPingpong, sm90::kPlain},
    {128, 224, 64, 1, 1, Schedule::kCooperative, sm90::kForward},
    {128, 256, 64, 1, 1, Schedule::kCooperative, sm90::kForward},
    {128, 256, 64, 2, 1, Schedule::kCooperative, sm90::kAll | sm90::kTf32},
    {256, 128, 64, 1, 1, Schedule::kCooperative, sm90::kForward | sm90::kDgrad},
    {256, 128, 64, 1, 2, Schedule::kCooperative, sm90::kAll | sm90::kTf32},
    {64, 128, 64, 1, 1, Schedule::kPingpong, sm90::kAll | sm90::kForwardSum | sm90::kDgradSum},
    {64, 64, 64, 1, 1, Schedule::kPingpong,
     sm90::kAll | sm90::kForwardSum | sm90::kDgradSum | sm90::kTf32},
    {128, 64, 64, 1, 1, Schedule::kPingpong, sm90::kAll},
    {128, 64, 64, 2, 1, Schedule::kCooperative, sm90::kForward | sm90::kPreact},
    {64, 192, 64, 1, 1, Schedule::kPingpong, sm90::kForward | sm90::kForwardSum},
};
inline constexpr int kNumSm90Configs = sizeof(kSm90Configs) / sizeof(kSm90Configs[0]);

// Which kernels are also compiled with a dynamic schedule (sm90_dynamic_scheduler.cuh). Taking a
// tile has its price: kernels of small tiles cannot pay it.
constexpr bool has_dynamic_schedule(int tile_m, Epilogue epilogue, Major a, Major b) {
  return tile_m >= 128 && epilogue == Epilogue::kFused && a == Major::kK && b == Major::kK;
}

// Which kernels can add to what 16-bit d holds (GemmProblem::accumulate).
constexpr bool adds_halves(Epilogue epilogue, Major a, Major b) {
  return epilogue == Epilogue::kFused && a == Major::kMN && b == Major::kMN;
}

// Which kernels exist. WGMMA takes 16-bit operands in any layout, TF32 operands K-major only. What
// is to be as accurate as fp32 has kernels of its own (kernels/parts).
constexpr bool sm90_compiled(int config, DType dtype, MathMode math, Epilogue epilogue, Major a,
                             Major b) {
  const GemmConfig& tile = kSm90Configs[config];
  if (dtype == DType::kFloat64 || math == MathMode::kFp32) return false;
  if (dtype == DType::kFloat32) {
    if (a != Major::kK || b != Major::kK || epilogue > Epilogue::kPreact) return false;
    if (!(tile.variants & sm90::kTf32)) return false;
  }
  return (tile.variants & variant_bit(epilogue, a, b)) != 0;
}

}  // namespace fusedops
