// Written by perf/make_gemm_table.py from perf/results/h200/gemm_sweep.csv: do not edit.
// Products for which select.cpp's time model chooses over 1 % more time than the best.
#pragma once

#include "cutlass/config.h"

namespace fusedops {

struct MeasuredGemm {
  int64_t m, n, k;
  Major a, b;
  Epilogue epilogue;
  Family family;
  int tile_m, tile_n, cluster_m, cluster_n, splits;
};

inline constexpr MeasuredGemm kSm90Measured[] = {
    {197, 1024, 4096, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 64, 128, 1, 2, 1},
    {512, 4096, 4096, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 2, 1, 1},
    {577, 1024, 4096, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 128, 96, 1, 2, 1},
    {900, 1536, 4096, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 192, 128, 1, 2, 1},
    {1000, 1280, 1280, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 128, 160, 1, 2, 1},
    {1024, 1024, 4096, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 128, 128, 1, 2, 1},
    {2048, 800, 3200, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 192, 160, 1, 2, 1},
    {2048, 2048, 2048, Major::kK, Major::kMN, Epilogue::kFused, Family::kSm90, 256, 128, 1, 1, 1},
    {2048, 2048, 2048, Major::kMN, Major::kMN, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {2048, 5120, 1280, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {4096, 1024, 512, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {4096, 1600, 1600, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 224, 1, 1, 1},
    {4096, 5120, 1280, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {8192, 1024, 2048, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {8192, 4096, 1024, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {8192, 5120, 1280, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {8192, 14336, 4096, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 2, 1, 1},
    {10000, 2000, 800, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 160, 2, 1, 1},
    {12608, 4096, 1024, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {20000, 1200, 600, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 256, 2, 1, 1},
    {32768, 64, 256, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 64, 1, 1, 1},
    {32768, 512, 1024, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {32768, 1024, 1024, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {50176, 768, 192, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {200704, 384, 96, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 256, 128, 1, 1, 1},
    {262144, 128, 128, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 128, 1, 1, 1},
    {262144, 256, 128, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 128, 1, 1, 1},
};

}  // namespace fusedops
