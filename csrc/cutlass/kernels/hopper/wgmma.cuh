// WGMMA of 16-bit operands in shared memory, in rows of 128 (or 64) bytes with a swizzle as wide:
// d (64, N) += a (64, 16) @ b (N, 16)^T in fp32. An operand lies K-contiguous, or transposed: in
// rows of 64 of its 64 or N. sm_90a only.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace fusedops::wgmma {

// PTX ISA, "Shared memory matrix layout": 8 rows of kRowBytes (128 or 64) after the other, with the
// swizzle of as many bytes. far_bytes: from the first 64 of a transposed operand's N to the next.
template <int kRowBytes = 128>
__device__ __forceinline__ uint64_t descriptor(uint32_t shared_address, uint32_t far_bytes = 16) {
  return uint64_t((shared_address & 0x3ffff) >> 4) | (uint64_t(far_bytes >> 4) << 16) |
         (uint64_t(8 * kRowBytes >> 4) << 32) | (uint64_t(128 / kRowBytes) << 62);
}
// The number of this thread's warpgroup in its block, in a uniform register. Descriptors made from
// it then stay there as well: moving each there costs more time than a small multiplication.
__device__ __forceinline__ int warpgroup() {
  return __shfl_sync(0xffffffff, int(threadIdx.x) / 128, 0);
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
#define FUSEDOPS_D64(i) FUSEDOPS_D32(i), FUSEDOPS_D32(i + 32)
#define FUSEDOPS_R4 "%0,%1,%2,%3"
#define FUSEDOPS_R8 FUSEDOPS_R4 ",%4,%5,%6,%7"
#define FUSEDOPS_R12 FUSEDOPS_R8 ",%8,%9,%10,%11"
#define FUSEDOPS_R16 FUSEDOPS_R12 ",%12,%13,%14,%15"
#define FUSEDOPS_R20 FUSEDOPS_R16 ",%16,%17,%18,%19"
#define FUSEDOPS_R24 FUSEDOPS_R20 ",%20,%21,%22,%23"
#define FUSEDOPS_R28 FUSEDOPS_R24 ",%24,%25,%26,%27"
#define FUSEDOPS_R32 FUSEDOPS_R28 ",%28,%29,%30,%31"
#define FUSEDOPS_R36 FUSEDOPS_R32 ",%32,%33,%34,%35"
#define FUSEDOPS_R40 FUSEDOPS_R36 ",%36,%37,%38,%39"
#define FUSEDOPS_R44 FUSEDOPS_R40 ",%40,%41,%42,%43"
#define FUSEDOPS_R48 FUSEDOPS_R44 ",%44,%45,%46,%47"
#define FUSEDOPS_R52 FUSEDOPS_R48 ",%48,%49,%50,%51"
#define FUSEDOPS_R56 FUSEDOPS_R52 ",%52,%53,%54,%55"
#define FUSEDOPS_R60 FUSEDOPS_R56 ",%56,%57,%58,%59"
#define FUSEDOPS_R64 FUSEDOPS_R60 ",%60,%61,%62,%63"
#define FUSEDOPS_R68 FUSEDOPS_R64 ",%64,%65,%66,%67"
#define FUSEDOPS_R72 FUSEDOPS_R68 ",%68,%69,%70,%71"
#define FUSEDOPS_R76 FUSEDOPS_R72 ",%72,%73,%74,%75"
#define FUSEDOPS_R80 FUSEDOPS_R76 ",%76,%77,%78,%79"
#define FUSEDOPS_R84 FUSEDOPS_R80 ",%80,%81,%82,%83"
#define FUSEDOPS_R88 FUSEDOPS_R84 ",%84,%85,%86,%87"
#define FUSEDOPS_R92 FUSEDOPS_R88 ",%88,%89,%90,%91"
#define FUSEDOPS_R96 FUSEDOPS_R92 ",%92,%93,%94,%95"
#define FUSEDOPS_R100 FUSEDOPS_R96 ",%96,%97,%98,%99"
#define FUSEDOPS_R104 FUSEDOPS_R100 ",%100,%101,%102,%103"
#define FUSEDOPS_R108 FUSEDOPS_R104 ",%104,%105,%106,%107"
#define FUSEDOPS_WGMMA(shape, type, registers, a, b, ta, tb, ...)                                 \
  asm volatile("wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" registers "}, " a \
               ", " b ", 1, 1, 1, " ta ", " tb ";"                                                \
               : __VA_ARGS__                                                                      \
               : "l"(a_desc), "l"(b_desc), "n"(int(kTransA)), "n"(int(kTransB)))
// r0..r3: the operands behind the accumulators %0 to %(r0 - 1).
#define FUSEDOPS_CASE(columns, r0, r1, r2, r3, ...)                                          \
  if constexpr (N == columns && __is_same(T, __half)) {                                      \
    FUSEDOPS_WGMMA("m64n" #columns "k16", "f16", FUSEDOPS_R##r0, "%" #r0, "%" #r1, "%" #r2,  \
                   "%" #r3, __VA_ARGS__);                                                    \
  } else if constexpr (N == columns) {                                                       \
    FUSEDOPS_WGMMA("m64n" #columns "k16", "bf16", FUSEDOPS_R##r0, "%" #r0, "%" #r1, "%" #r2, \
                   "%" #r3, __VA_ARGS__);                                                    \
  }

// One instruction; d holds N / 2 values of this thread.
template <class T, int N, bool kTransA = false, bool kTransB = false>
__device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a_desc, uint64_t b_desc) {
  FUSEDOPS_CASE(8, 4, 5, 6, 7, FUSEDOPS_D4(0));
  FUSEDOPS_CASE(16, 8, 9, 10, 11, FUSEDOPS_D8(0));
  FUSEDOPS_CASE(32, 16, 17, 18, 19, FUSEDOPS_D16(0));
  FUSEDOPS_CASE(64, 32, 33, 34, 35, FUSEDOPS_D32(0));
  FUSEDOPS_CASE(72, 36, 37, 38, 39, FUSEDOPS_D32(0), FUSEDOPS_D4(32));
  FUSEDOPS_CASE(80, 40, 41, 42, 43, FUSEDOPS_D32(0), FUSEDOPS_D8(32));
  FUSEDOPS_CASE(88, 44, 45, 46, 47, FUSEDOPS_D32(0), FUSEDOPS_D8(32), FUSEDOPS_D4(40));
  FUSEDOPS_CASE(96, 48, 49, 50, 51, FUSEDOPS_D32(0), FUSEDOPS_D16(32));
  FUSEDOPS_CASE(104, 52, 53, 54, 55, FUSEDOPS_D32(0), FUSEDOPS_D16(32), FUSEDOPS_D4(48));
  FUSEDOPS_CASE(112, 56, 57, 58, 59, FUSEDOPS_D32(0), FUSEDOPS_D16(32), FUSEDOPS_D8(48));
  FUSEDOPS_CASE(120, 60, 61, 62, 63, FUSEDOPS_D32(0), FUSEDOPS_D16(32), FUSEDOPS_D8(48),
                FUSEDOPS_D4(56));
  FUSEDOPS_CASE(128, 64, 65, 66, 67, FUSEDOPS_D64(0));
  FUSEDOPS_CASE(136, 68, 69, 70, 71, FUSEDOPS_D64(0), FUSEDOPS_D4(64));
  FUSEDOPS_CASE(144, 72, 73, 74, 75, FUSEDOPS_D64(0), FUSEDOPS_D8(64));
  FUSEDOPS_CASE(152, 76, 77, 78, 79, FUSEDOPS_D64(0), FUSEDOPS_D8(64), FUSEDOPS_D4(72));
  FUSEDOPS_CASE(160, 80, 81, 82, 83, FUSEDOPS_D64(0), FUSEDOPS_D16(64));
  FUSEDOPS_CASE(168, 84, 85, 86, 87, FUSEDOPS_D64(0), FUSEDOPS_D16(64), FUSEDOPS_D4(80));
  FUSEDOPS_CASE(176, 88, 89, 90, 91, FUSEDOPS_D64(0), FUSEDOPS_D16(64), FUSEDOPS_D8(80));
  FUSEDOPS_CASE(184, 92, 93, 94, 95, FUSEDOPS_D64(0), FUSEDOPS_D16(64), FUSEDOPS_D8(80),
                FUSEDOPS_D4(88));
  FUSEDOPS_CASE(192, 96, 97, 98, 99, FUSEDOPS_D64(0), FUSEDOPS_D32(64));
  FUSEDOPS_CASE(208, 104, 105, 106, 107, FUSEDOPS_D64(0), FUSEDOPS_D32(64), FUSEDOPS_D8(96));
  FUSEDOPS_CASE(216, 108, 109, 110, 111, FUSEDOPS_D64(0), FUSEDOPS_D32(64), FUSEDOPS_D8(96),
                FUSEDOPS_D4(104));
  static_assert(N < 64 ? N == 8 || N == 16 || N == 32 : N % 8 == 0 && N <= 216 && N != 200);
}

#undef FUSEDOPS_CASE
#undef FUSEDOPS_WGMMA
#undef FUSEDOPS_R108
#undef FUSEDOPS_R104
#undef FUSEDOPS_R100
#undef FUSEDOPS_R96
#undef FUSEDOPS_R92
#undef FUSEDOPS_R88
#undef FUSEDOPS_R84
#undef FUSEDOPS_R80
#undef FUSEDOPS_R76
#undef FUSEDOPS_R72
#undef FUSEDOPS_R68
#undef FUSEDOPS_R64
#undef FUSEDOPS_R60
#undef FUSEDOPS_R56
#undef FUSEDOPS_R52
#undef FUSEDOPS_R48
#undef FUSEDOPS_R44
#undef FUSEDOPS_R40
#undef FUSEDOPS_R36
#undef FUSEDOPS_R32
#undef FUSEDOPS_R28
#undef FUSEDOPS_R24
#undef FUSEDOPS_R20
#undef FUSEDOPS_R16
#undef FUSEDOPS_R12
#undef FUSEDOPS_R8
#undef FUSEDOPS_R4
#undef FUSEDOPS_D64
#undef FUSEDOPS_D32
#undef FUSEDOPS_D16
#undef FUSEDOPS_D8
#undef FUSEDOPS_D4

}  // namespace fusedops::wgmma
