// The WGMMA instruction m64n64k16 of 16-bit types with fp32 sums, its operands in shared memory or
// a's in registers, and what orders it. sm_90a only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fusedops {

inline constexpr int kEdgePart = 64;  // columns of an instruction

// Values of kEdgePart columns of a lane's two rows, 32 columns at a time.
struct EdgePart {
  float y[kEdgePart / 32][4][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int c = 0; c < kEdgePart / 32; ++c) {
#pragma unroll
      for (int i = 0; i < 16; ++i) y[c][i / 4][i % 4] = 0.f;
    }
  }

  // The compiler must not move uses over the wait for the products.
  __device__ __forceinline__ void settle() {
#pragma unroll
    for (int c = 0; c < kEdgePart / 32; ++c) {
#pragma unroll
      for (int i = 0; i < 16; ++i) asm volatile("" : "+f"(y[c][i / 4][i % 4]));
    }
  }
};

// A matrix in shared memory that consists of pieces of 8 values; 8 pieces, of 8 rows, follow each
// other. PTX ISA, "Shared memory matrix layout", without swizzle. K along a piece: leading_pieces
// is from 8 of K to the next 8, stride_pieces from 8 rows to the next. K across pieces (a
// transposed operand): leading_pieces is from 8 of K to the next, stride_pieces of the other side.
__device__ __forceinline__ uint64_t edge_descriptor(const void* matrix, int leading_pieces,
                                                    int stride_pieces) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(matrix));
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(leading_pieces) << 16 |
         uint64_t(stride_pieces) << 32;
}

// The number of this thread's warpgroup, in a uniform register, as descriptors made from it are.
__device__ __forceinline__ int edge_warpgroup() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
}

// The threads of one of two warpgroups wait for each other.
__device__ __forceinline__ void edge_warpgroup_barrier() {
  // NOTE: by number: of one that it does not know ptxas reserves all 16.
  if (threadIdx.x < 128) {
    asm volatile("bar.sync 1, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 128;" ::: "memory");
  }
}

// Writes four 8 x 8 matrices as a warp has them in an operand: lane 8 i + r says where row r of
// matrix i goes, a multiple of 16 bytes.
__device__ __forceinline__ void edge_store_matrices(void* row, const uint32_t (&a)[4]) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
}

// The pointer, as one that the compiler does not know: what is read there is not kept in registers
// from one turn of a loop to the next.
template <class V>
__device__ __forceinline__ const V* edge_reread(const V* from) {
  asm volatile("" : "+l"(from));
  return from;
}

// What threads have written is there for WGMMA, which reads through the asynchronous proxy; a
// barrier has to follow.
__device__ __forceinline__ void publish_operands() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void edge_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void edge_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when at most kGroups of the committed groups are still running.
template <int kGroups>
__device__ __forceinline__ void edge_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

#define FUSEDOPS_Y4(mode, c, b) \
  mode(d.y[c][b][0]), mode(d.y[c][b][1]), mode(d.y[c][b][2]), mode(d.y[c][b][3])
#define FUSEDOPS_Y16(mode, c) \
  FUSEDOPS_Y4(mode, c, 0), FUSEDOPS_Y4(mode, c, 1), FUSEDOPS_Y4(mode, c, 2), FUSEDOPS_Y4(mode, c, 3)
// operand: a; at: b, behind it; flags: which of both are transposed.
#define FUSEDOPS_WGMMA(type, mode, adds, operand, at, flags, ...)                            \
  asm volatile(                                                                              \
      "{.reg .pred p; setp.ne.b32 p, " adds                                                  \
      ", 0;"                                                                                 \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                            \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22," \
      "%23,%24,%25,%26,%27,%28,%29,%30,%31}, " operand ", " at ", p, 1, 1, " flags ";}"      \
      : FUSEDOPS_Y16(mode, 0), FUSEDOPS_Y16(mode, 1)                                         \
      : __VA_ARGS__)
#define FUSEDOPS_RS(type, mode, adds)                                                     \
  FUSEDOPS_WGMMA(type, mode, adds, "{%32,%33,%34,%35}", "%36", "0", "r"(a[0]), "r"(a[1]), \
                 "r"(a[2]), "r"(a[3]), "l"(b))
#define FUSEDOPS_SS(type, mode, adds) \
  FUSEDOPS_WGMMA(type, mode, adds, "%32", "%33", "%34, 1", "l"(a), "l"(b), "n"(int(kTransA)))
#define FUSEDOPS_ADDED(x) "+f"(x)
#define FUSEDOPS_NEW(x) "=f"(x)

// One instruction: d += a b.
template <class T>
__device__ __forceinline__ void edge_multiply(EdgePart& d, const uint32_t (&a)[4], uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FUSEDOPS_RS("f16", FUSEDOPS_ADDED, "1");
  } else {
    FUSEDOPS_RS("bf16", FUSEDOPS_ADDED, "1");
  }
}

// d = a b, likewise.
template <class T>
__device__ __forceinline__ void edge_multiply_first(EdgePart& d, const uint32_t (&a)[4],
                                                    uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FUSEDOPS_RS("f16", FUSEDOPS_NEW, "0");
  } else {
    FUSEDOPS_RS("bf16", FUSEDOPS_NEW, "0");
  }
}

// d += a b, or d = a b, of operands in shared memory: b is transposed, and a where asked for.
template <class T, bool kTransA>
__device__ __forceinline__ void edge_multiply(EdgePart& d, uint64_t a, uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FUSEDOPS_SS("f16", FUSEDOPS_ADDED, "1");
  } else {
    FUSEDOPS_SS("bf16", FUSEDOPS_ADDED, "1");
  }
}

template <class T, bool kTransA>
__device__ __forceinline__ void edge_multiply_first(EdgePart& d, uint64_t a, uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FUSEDOPS_SS("f16", FUSEDOPS_NEW, "0");
  } else {
    FUSEDOPS_SS("bf16", FUSEDOPS_NEW, "0");
  }
}

#undef FUSEDOPS_NEW
#undef FUSEDOPS_ADDED
#undef FUSEDOPS_SS
#undef FUSEDOPS_RS
#undef FUSEDOPS_WGMMA
#undef FUSEDOPS_Y16
#undef FUSEDOPS_Y4

}  // namespace fusedops
