// WGMMA whose left operand is in registers: d (64, N) = a (64, 16) @ b (N, 16)^T of bf16, added to
// d or not, in fp32; b lies in shared memory as wgmma.cuh says. sm_90a only.
#pragma once

#include <cstdint>

#include "csrc/cutlass/kernels/hopper/wgmma.cuh"

namespace fusedops::wgmma {

#define FUSEDOPS_D8(i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define FUSEDOPS_D16(i) FUSEDOPS_D8(i), FUSEDOPS_D8(i + 8)
#define FUSEDOPS_D32(i) FUSEDOPS_D16(i), FUSEDOPS_D16(i + 16)
#define FUSEDOPS_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define FUSEDOPS_R32 FUSEDOPS_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define FUSEDOPS_R48 FUSEDOPS_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define FUSEDOPS_R64 FUSEDOPS_R48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// left, b_desc, add, transposed: the operands behind the sums.
#define FUSEDOPS_WGMMA(columns, registers, left, b_desc, add, transposed, ...)                \
  asm volatile(                                                                               \
      "{\n"                                                                                   \
      ".reg .pred adds;\n"                                                                    \
      "setp.ne.b32 adds, " add                                                                \
      ", 0;\n"                                                                                \
      "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" registers "}, {" left \
      "}, " b_desc ", adds, 1, 1, " transposed                                                \
      ";\n"                                                                                   \
      "}"                                                                                     \
      : __VA_ARGS__                                                                           \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)), "n"(int(kTransB)))

// One instruction; d holds N / 2 values of this thread. a: as mma.m16n8k16 has them.
template <int N, bool kTransB>
__device__ __forceinline__ void multiply_left(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,
                                              bool adds) {
  static_assert(N == 32 || N == 64 || N == 96 || N == 128);
  if constexpr (N == 32) {
    FUSEDOPS_WGMMA("32", FUSEDOPS_R16, "%16,%17,%18,%19", "%20", "%21", "%22", FUSEDOPS_D16(0));
  } else if constexpr (N == 64) {
    FUSEDOPS_WGMMA("64", FUSEDOPS_R32, "%32,%33,%34,%35", "%36", "%37", "%38", FUSEDOPS_D32(0));
  } else if constexpr (N == 96) {
    FUSEDOPS_WGMMA("96", FUSEDOPS_R48, "%48,%49,%50,%51", "%52", "%53", "%54", FUSEDOPS_D32(0),
                   FUSEDOPS_D16(32));
  } else {
    FUSEDOPS_WGMMA("128", FUSEDOPS_R64, "%64,%65,%66,%67", "%68", "%69", "%70", FUSEDOPS_D32(0),
                   FUSEDOPS_D32(32));
  }
}

#undef FUSEDOPS_WGMMA
#undef FUSEDOPS_R64
#undef FUSEDOPS_R48
#undef FUSEDOPS_R32
#undef FUSEDOPS_R16
#undef FUSEDOPS_D32
#undef FUSEDOPS_D16
#undef FUSEDOPS_D8

}  // namespace fusedops::wgmma
