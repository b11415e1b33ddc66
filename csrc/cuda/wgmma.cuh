// WGMMA of 16-bit operands in shared memory, in rows of 128 bytes with the 128-byte swizzle:
// d (64, N) += a (64, 16) @ b (N, 16)^T in fp32. An operand lies K-contiguous, or transposed: in
// rows of 64 of its 64 or N. sm_90a only.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace fusedops::wgmma {

// PTX ISA, "Shared memory matrix layout": 8 rows every 1024 bytes, swizzle mode 1 (128 bytes).
// far_bytes: from the first 64 of a transposed operand's N to the next.
__device__ __forceinline__ uint64_t descriptor(uint32_t shared_address, uint32_t far_bytes = 16) {
  return uint64_t((shared_address & 0x3ffff) >> 4) | (uint64_t(far_bytes >> 4) << 16) |
         (uint64_t(64) << 32) | (uint64_t(1) << 62);
}
// These move a descriptor by 16 values of K.
inline constexpr uint64_t kStepK = 32 >> 4, kStepRows = 2048 >> 4;

__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when at most kGroups of the committed groups are still running.
template <int kGroups>
__device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// The compiler must not move uses of accumulators over the wait for them.
template <int N>
__device__ __forceinline__ void settle(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define FUSEDOPS_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FUSEDOPS_D8(i) FUSEDOPS_D4(i), FUSEDOPS_D4(i + 4)
#define FUSEDOPS_D16(i) FUSEDOPS_D8(i), FUSEDOPS_D8(i + 8)
#define FUSEDOPS_D32(i) FUSEDOPS_D16(i), FUSEDOPS_D16(i + 16)
#define FUSEDOPS_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define FUSEDOPS_R24 FUSEDOPS_R16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define FUSEDOPS_R32 FUSEDOPS_R24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define FUSEDOPS_R40 FUSEDOPS_R32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define FUSEDOPS_R48 FUSEDOPS_R40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define FUSEDOPS_R56 FUSEDOPS_R48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define FUSEDOPS_R64 FUSEDOPS_R56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define FUSEDOPS_R72 FUSEDOPS_R64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define FUSEDOPS_R80 FUSEDOPS_R72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define FUSEDOPS_R88 FUSEDOPS_R80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define FUSEDOPS_R96 FUSEDOPS_R88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define FUSEDOPS_R104 FUSEDOPS_R96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define FUSEDOPS_R112 FUSEDOPS_R104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define FUSEDOPS_WGMMA(shape, type, registers, a, b, ta, tb, ...)                                 \
  asm volatile("wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" registers "}, " a \
               ", " b ", 1, 1, 1, " ta ", " tb ";"                                                \
               : __VA_ARGS__                                                                      \
               : "l"(a_desc), "l"(b_desc), "n"(int(kTransA)), "n"(int(kTransB)))
#define FUSEDOPS_BOTH(shape, ...)               \
  if constexpr (__is_same(T, __half)) {         \
    FUSEDOPS_WGMMA(shape, "f16", __VA_ARGS__);  \
  } else {                                      \
    FUSEDOPS_WGMMA(shape, "bf16", __VA_ARGS__); \
  }

// One instruction; d holds N / 2 values of this thread.
template <class T, int N, bool kTransA = false, bool kTransB = false>
__device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a_desc, uint64_t b_desc) {
  if constexpr (N == 8) {
    FUSEDOPS_BOTH("m64n8k16", "%0,%1,%2,%3", "%4", "%5", "%6", "%7", FUSEDOPS_D4(0));
  } else if constexpr (N == 16) {
    FUSEDOPS_BOTH("m64n16k16", "%0,%1,%2,%3,%4,%5,%6,%7", "%8", "%9", "%10", "%11", FUSEDOPS_D8(0));
  } else if constexpr (N == 32) {
    FUSEDOPS_BOTH("m64n32k16", FUSEDOPS_R16, "%16", "%17", "%18", "%19", FUSEDOPS_D16(0));
  } else if constexpr (N == 64) {
    FUSEDOPS_BOTH("m64n64k16", FUSEDOPS_R32, "%32", "%33", "%34", "%35", FUSEDOPS_D32(0));
  } else if constexpr (N == 80) {
    FUSEDOPS_BOTH("m64n80k16", FUSEDOPS_R40, "%40", "%41", "%42", "%43", FUSEDOPS_D32(0),
                  FUSEDOPS_D8(32));
  } else if constexpr (N == 96) {
    FUSEDOPS_BOTH("m64n96k16", FUSEDOPS_R48, "%48", "%49", "%50", "%51", FUSEDOPS_D32(0),
                  FUSEDOPS_D16(32));
  } else if constexpr (N == 112) {
    FUSEDOPS_BOTH("m64n112k16", FUSEDOPS_R56, "%56", "%57", "%58", "%59", FUSEDOPS_D32(0),
                  FUSEDOPS_D16(32), FUSEDOPS_D8(48));
  } else if constexpr (N == 128) {
    FUSEDOPS_BOTH("m64n128k16", FUSEDOPS_R64, "%64", "%65", "%66", "%67", FUSEDOPS_D32(0),
                  FUSEDOPS_D32(32));
  } else if constexpr (N == 144) {
    FUSEDOPS_BOTH("m64n144k16", FUSEDOPS_R72, "%72", "%73", "%74", "%75", FUSEDOPS_D32(0),
                  FUSEDOPS_D32(32), FUSEDOPS_D8(64));
  } else if constexpr (N == 160) {
    FUSEDOPS_BOTH("m64n160k16", FUSEDOPS_R80, "%80", "%81", "%82", "%83", FUSEDOPS_D32(0),
                  FUSEDOPS_D32(32), FUSEDOPS_D16(64));
  } else if constexpr (N == 176) {
    FUSEDOPS_BOTH("m64n176k16", FUSEDOPS_R88, "%88", "%89", "%90", "%91", FUSEDOPS_D32(0),
                  FUSEDOPS_D32(32), FUSEDOPS_D16(64), FUSEDOPS_D8(80));
  } else if constexpr (N == 192) {
    FUSEDOPS_BOTH("m64n192k16", FUSEDOPS_R96, "%96", "%97", "%98", "%99", FUSEDOPS_D32(0),
                  FUSEDOPS_D32(32), FUSEDOPS_D32(64));
  } else {
    static_assert(N == 224);
    FUSEDOPS_BOTH("m64n224k16", FUSEDOPS_R112, "%112", "%113", "%114", "%115", FUSEDOPS_D32(0),
                  FUSEDOPS_D32(32), FUSEDOPS_D32(64), FUSEDOPS_D16(96));
  }
}

#undef FUSEDOPS_BOTH
#undef FUSEDOPS_WGMMA
#undef FUSEDOPS_R112
#undef FUSEDOPS_R104
#undef FUSEDOPS_R96
#undef FUSEDOPS_R88
#undef FUSEDOPS_R80
#undef FUSEDOPS_R72
#undef FUSEDOPS_R64
#undef FUSEDOPS_R56
#undef FUSEDOPS_R48
#undef FUSEDOPS_R40
#undef FUSEDOPS_R32
#undef FUSEDOPS_R24
#undef FUSEDOPS_R16
#undef FUSEDOPS_D32
#undef FUSEDOPS_D16
#undef FUSEDOPS_D8
#undef FUSEDOPS_D4

}  // namespace fusedops::wgmma
