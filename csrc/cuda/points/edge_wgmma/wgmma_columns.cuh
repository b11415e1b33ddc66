// WGMMA of other widths than wgmma.cuh's: m64nNk16 of 16-bit types with fp32 sums, b in shared
// memory and a there or in registers. sm_90a only.
#pragma once

#include "csrc/cuda/points/edge_wgmma/wgmma.cuh"

namespace fusedops {

// Values of kColumns columns of a lane's two rows, 8 columns at a time.
template <int kColumns>
struct EdgeColumns {
  static constexpr int kBlocks = kColumns / 8;
  float y[kBlocks][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) y[b][0] = y[b][1] = y[b][2] = y[b][3] = 0.f;
  }

  // The compiler must not move uses over the wait for the products.
  __device__ __forceinline__ void settle() {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(y[b][i]));
    }
  }
};

#define FUSEDOPS_ADDED(x) "+f"(x)
#define FUSEDOPS_NEW(x) "=f"(x)
#define FUSEDOPS_Y1(mode, b) mode(d.y[b][0]), mode(d.y[b][1]), mode(d.y[b][2]), mode(d.y[b][3])
#define FUSEDOPS_Y2(mode, b) FUSEDOPS_Y1(mode, b), FUSEDOPS_Y1(mode, b + 1)
#define FUSEDOPS_Y4(mode, b) FUSEDOPS_Y2(mode, b), FUSEDOPS_Y2(mode, b + 2)
#define FUSEDOPS_Y6(mode, b) FUSEDOPS_Y4(mode, b), FUSEDOPS_Y2(mode, b + 4)
#define FUSEDOPS_Y8(mode, b) FUSEDOPS_Y4(mode, b), FUSEDOPS_Y4(mode, b + 4)
#define FUSEDOPS_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define FUSEDOPS_R24 FUSEDOPS_R16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define FUSEDOPS_R32 FUSEDOPS_R24 ",%24,%25,%26,%27,%28,%29,%30,%31"
// registers: d's; operands: a, b and what is said of them; values: d's, as they are named for
// `adds` or not; behind them what a and b are.
#define FUSEDOPS_COLUMNS(type, n, adds, registers, operands, values, ...)                    \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " adds                                         \
               ", 0;"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers \
               "}, " operands ";}"                                                           \
               : values                                                                      \
               : __VA_ARGS__)
#define FUSEDOPS_OF_WIDTH(type, mode, adds, at32, at48, at64, ...)                             \
  if constexpr (kColumns == 32) {                                                              \
    FUSEDOPS_COLUMNS(type, "32", adds, FUSEDOPS_R16, at32, FUSEDOPS_Y4(mode, 0), __VA_ARGS__); \
  } else if constexpr (kColumns == 48) {                                                       \
    FUSEDOPS_COLUMNS(type, "48", adds, FUSEDOPS_R24, at48, FUSEDOPS_Y6(mode, 0), __VA_ARGS__); \
  } else {                                                                                     \
    static_assert(kColumns == 64);                                                             \
    FUSEDOPS_COLUMNS(type, "64", adds, FUSEDOPS_R32, at64, FUSEDOPS_Y8(mode, 0), __VA_ARGS__); \
  }
#define FUSEDOPS_RS(type, mode, adds)                                                           \
  FUSEDOPS_OF_WIDTH(type, mode, adds, "{%16,%17,%18,%19}, %20, p, 1, 1, 0",                     \
                    "{%24,%25,%26,%27}, %28, p, 1, 1, 0", "{%32,%33,%34,%35}, %36, p, 1, 1, 0", \
                    "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define FUSEDOPS_SS(type, mode, adds)                                                           \
  FUSEDOPS_OF_WIDTH(type, mode, adds, "%16, %17, p, 1, 1, %18, 1", "%24, %25, p, 1, 1, %26, 1", \
                    "%32, %33, p, 1, 1, %34, 1", "l"(a), "l"(b), "n"(int(kTransA)))

// One instruction: d += a b.
template <class T, int kColumns>
__device__ __forceinline__ void multiply_columns(EdgeColumns<kColumns>& d, const uint32_t (&a)[4],
                                                 uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FUSEDOPS_RS("f16", FUSEDOPS_ADDED, "1")
  } else {
    FUSEDOPS_RS("bf16", FUSEDOPS_ADDED, "1")
  }
}

// d = a b, likewise.
template <class T, int kColumns>
__device__ __forceinline__ void multiply_columns_first(EdgeColumns<kColumns>& d,
                                                       const uint32_t (&a)[4], uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FUSEDOPS_RS("f16", FUSEDOPS_NEW, "0")
  } else {
    FUSEDOPS_RS("bf16", FUSEDOPS_NEW, "0")
  }
}

// d += a b, or d = a b, of operands in shared memory: b is transposed, and a where asked for.
template <class T, bool kTransA, int kColumns>
__device__ __forceinline__ void multiply_columns(EdgeColumns<kColumns>& d, uint64_t a, uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FUSEDOPS_SS("f16", FUSEDOPS_ADDED, "1")
  } else {
    FUSEDOPS_SS("bf16", FUSEDOPS_ADDED, "1")
  }
}

template <class T, bool kTransA, int kColumns>
__device__ __forceinline__ void multiply_columns_first(EdgeColumns<kColumns>& d, uint64_t a,
                                                       uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FUSEDOPS_SS("f16", FUSEDOPS_NEW, "0")
  } else {
    FUSEDOPS_SS("bf16", FUSEDOPS_NEW, "0")
  }
}

#undef FUSEDOPS_SS
#undef FUSEDOPS_RS
#undef FUSEDOPS_OF_WIDTH
#undef FUSEDOPS_COLUMNS
#undef FUSEDOPS_R32
#undef FUSEDOPS_R24
#undef FUSEDOPS_R16
#undef FUSEDOPS_Y8
#undef FUSEDOPS_Y6
#undef FUSEDOPS_Y4
#undef FUSEDOPS_Y2
#undef FUSEDOPS_Y1
#undef FUSEDOPS_NEW
#undef FUSEDOPS_ADDED

}  // namespace fusedops
