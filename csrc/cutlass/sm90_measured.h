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
    {197, 2560, 2408, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 128, 160, 1, 2, 1},
    {197, 3584, 1152, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 112, 128, 1, 2, 1},
    {200, 1024, 1024, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 64, 1, 1, 1},
    {224, 768, 768, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 64, 1, 1, 1},
    {256, 1024, 1024, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 64, 1, 1, 1},
    {256, 1576, 640, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 64, 1, 1, 1},
    {257, 1280, 4920, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 160, 128, 1, 4, 1},
    {264, 1936, 5576, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 160, 128, 1, 2, 1},
    {328, 5920, 5784, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 256, 2, 1, 1},
    {384, 1024, 4096, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 128, 128, 1, 4, 1},
    {384, 2560, 2560, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 128, 64, 1, 1, 1},
    {384, 5120, 5120, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {512, 512, 512, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 64, 1, 1, 1},
    {512, 768, 768, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 64, 1, 1, 1},
    {512, 2048, 2048, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 64, 1, 1, 1},
    {512, 4096, 4096, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 2, 1, 1},
    {512, 6168, 5504, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 192, 2, 1, 1},
    {520, 1040, 4288, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 112, 128, 1, 2, 1},
    {577, 768, 3072, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 64, 128, 1, 2, 1},
    {700, 1280, 5120, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 128, 1, 1, 1},
    {720, 960, 1920, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 64, 192, 1, 2, 1},
    {800, 2048, 2048, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 224, 128, 1, 2, 1},
    {888, 3584, 3584, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 224, 1, 1, 1},
    {904, 3456, 4736, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 224, 1, 1, 1},
    {992, 3072, 768, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 192, 1, 1, 1},
    {1000, 512, 1024, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 64, 1, 1, 1},
    {1000, 2432, 4416, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 160, 2, 1, 1},
    {1024, 768, 3072, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 64, 192, 1, 2, 1},
    {1024, 4096, 4096, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 256, 128, 1, 1, 1},
    {1028, 2048, 3840, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 176, 128, 1, 1, 1},
    {1056, 864, 896, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 128, 1, 1, 1},
    {1152, 1152, 4608, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 192, 1, 1, 1},
    {1256, 1536, 384, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 128, 1, 1, 1},
    {1352, 512, 2048, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 128, 1, 1, 1},
    {1368, 2560, 2560, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 224, 1, 1, 1},
    {1536, 2560, 2560, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 256, 128, 1, 1, 1},
    {1600, 640, 2560, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 128, 1, 1, 1},
    {1600, 2176, 2560, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 224, 1, 1, 1},
    {1608, 512, 2048, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 128, 64, 1, 1, 1},
    {1608, 2048, 512, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 224, 1, 1, 1},
    {1616, 896, 4864, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 96, 128, 1, 1, 1},
    {1696, 896, 4864, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 96, 128, 1, 1, 1},
    {1704, 768, 3072, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 96, 128, 1, 1, 1},
    {1736, 768, 3072, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 80, 128, 1, 1, 1},
    {2048, 256, 512, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 64, 1, 1, 1},
    {2048, 512, 4096, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 128, 1, 1, 1},
    {2048, 2048, 2048, Major::kK, Major::kMN, Epilogue::kFused, Family::kSm90, 256, 128, 1, 1, 1},
    {2048, 2048, 2048, Major::kMN, Major::kMN, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {2048, 2048, 2048, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {2048, 5120, 1280, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {2248, 1152, 4304, Major::kK, Major::kK, Epilogue::kFused, Family::kCluster, 176, 128, 1, 1, 1},
    {3000, 1000, 520, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 192, 128, 2, 1, 1},
    {4096, 512, 256, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 64, 128, 1, 1, 1},
    {4096, 1024, 512, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {4096, 1600, 1600, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 224, 1, 1, 1},
    {4096, 5120, 1280, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 128, 1, 1, 1},
    {4288, 512, 3496, Major::kK, Major::kK, Epilogue::kFused, Family::kSm90, 128, 192, 2, 1, 1},
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
