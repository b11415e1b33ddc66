// Written by perf/make_gemm_table.py from perf/results/h200/gemm_sweep.csv: do not edit.
// Products for which select.cpp's time model chooses over 1 % more time than the best.
#pragma once

#include "cutlass/config.h"

namespace fusedops {

struct MeasuredGemm {
  int64_t m, n, k;
  Major a, b;
  Epilogue epilogue;
  int tile_m, tile_n, cluster_m, cluster_n, splits;
};

inline constexpr MeasuredGemm kSm90Measured[] = {
    {1, 4096, 4096, Major::kK, Major::kK, Epilogue::kFused, 64, 128, 1, 1, 4},
    {8, 4096, 4096, Major::kK, Major::kK, Epilogue::kFused, 64, 192, 1, 1, 4},
    {16, 4096, 4096, Major::kK, Major::kK, Epilogue::kFused, 64, 192, 1, 1, 4},
    {16, 11008, 4096, Major::kK, Major::kK, Epilogue::kFused, 64, 192, 1, 1, 1},
    {32, 4096, 4096, Major::kK, Major::kK, Epilogue::kFused, 64, 128, 1, 1, 2},
    {64, 8192, 1024, Major::kK, Major::kK, Epilogue::kFused, 64, 64, 1, 1, 1},
    {128, 4096, 4096, Major::kK, Major::kK, Epilogue::kFused, 128, 64, 1, 1, 1},
    {256, 4096, 4096, Major::kK, Major::kK, Epilogue::kFused, 128, 64, 1, 1, 1},
    {512, 4096, 4096, Major::kK, Major::kK, Epilogue::kFused, 128, 128, 2, 1, 1},
    {2048, 2048, 2048, Major::kK, Major::kMN, Epilogue::kFused, 256, 128, 1, 1, 1},
    {2048, 2048, 2048, Major::kMN, Major::kMN, Epilogue::kFused, 128, 128, 1, 1, 1},
    {2048, 2048, 2048, Major::kK, Major::kK, Epilogue::kPreact, 128, 128, 1, 1, 1},
    {8192, 1024, 4096, Major::kK, Major::kK, Epilogue::kPreact, 128, 128, 1, 1, 1},
    {8192, 4096, 11008, Major::kK, Major::kK, Epilogue::kFused, 128, 128, 1, 1, 1},
    {8192, 11008, 4096, Major::kK, Major::kK, Epilogue::kFused, 128, 128, 1, 1, 1},
    {16384, 3072, 768, Major::kK, Major::kK, Epilogue::kFused, 128, 192, 2, 1, 1},
    {1048576, 64, 64, Major::kK, Major::kMN, Epilogue::kFused, 128, 64, 1, 1, 1},
    {1048576, 64, 64, Major::kK, Major::kK, Epilogue::kFused, 128, 64, 1, 1, 1},
    {1048576, 64, 64, Major::kK, Major::kK, Epilogue::kPreact, 128, 64, 1, 1, 1},
};

}  // namespace fusedops
