// The way out of fp8_loops.cu that stores a tile twice in e4m3, by rows with 1x128 scales and
// transposed with one scale for 128x128: what an MLP's first layer would hand on.
//
// B's rows come permuted inside 16, so that a thread has 4 neighbouring columns of a row. In the
// transposed copy tokens inside 16 come as 0 8 1 9 2 10 .. 7 15. Rows beyond M are not cleared.
#pragma once

#include "csrc/cutlass/kernels/fp8/sm90_fp8_gemm.cuh"

namespace fusedops::fp8 {

struct QuantizingParams : Params {
  CUtensorMap rows, columns;  // boxes of 64 rows of 128 bytes
  float* row_scales;          // (N / 128, M)
  float* tile_scales;         // (N / 128, M / 128)
};

__device__ __forceinline__ float max_or_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// Bytes from the lowest on.
__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return uint32_t(low) | uint32_t(high) << 16;
}

// kBuffers: halves of a tile (8 KB) that may be on their way out.
template <int kTileM, int kBuffers>
class QuantizingStore {
 public:
  struct Shared {
    alignas(1024) uint8_t halves[kBuffers][8192];
    float maxima[4];
  };

  __device__ static void init(Shared&) {}
  __device__ QuantizingStore(const QuantizingParams& p, Shared& shared, int consumer)
      : p_(p), shared_(shared), barrier_(8 + consumer), thread_(threadIdx.x % 128) {}
  __device__ void prefetch(const Tile&) {}
  __device__ void finish() {
    if (thread_ == 0) cute::tma_store_wait<0>();
  }

  __device__ void run(float* sums, const Tile& tile, int row) {
    const int warp = thread_ / 32, lane = thread_ % 32;
    const int token = tile.m * kTileM + row;  // of this warpgroup's first row
    float inverse[2][2], tile_inverse;
    scale(sums, tile, token, inverse, tile_inverse);
    // rows
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint8_t* to = next_half();
      const int r = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
      for (int j = 0; j < 16; j += 4) {
        uint32_t bytes[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float *a = sums + m * 64 + (j + 2 * i) * 4, *b = a + 4;
          const float up = inverse[m][0], low = inverse[m][1];
          bytes[2 * i] = pack_e4m3(a[0] * up, a[1] * up, b[0] * up, b[1] * up);
          bytes[2 * i + 1] = pack_e4m3(a[2] * low, a[3] * low, b[2] * low, b[3] * low);
        }
        cute::SM90_U32x4_STSM_N::copy(
            bytes[0], bytes[1], bytes[2], bytes[3],
            *reinterpret_cast<cute::uint128_t*>(to + r * 128 + ((j / 2 + lane / 16) ^ r % 8) * 16));
      }
      publish(p_.rows, to, tile.n * 128, token + m * 64);
    }
    // columns
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint8_t* to = next_half();
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int j = half * 8; j < half * 8 + 8; j += 4) {
          uint32_t bytes[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* a = sums + m * 64 + (j + i) * 4;
            bytes[i] = pack_e4m3(a[0] * tile_inverse, a[2] * tile_inverse, a[1] * tile_inverse,
                                 a[3] * tile_inverse);
          }
          const int octet = j + lane / 8, s = lane % 8;
          const int column = octet / 2 * 16 + s / 2 * 4 + octet % 2 * 2 + s % 2;
          cute::SM90_U16x8_STSM_T::copy(
              bytes[0], bytes[1], bytes[2], bytes[3],
              *reinterpret_cast<cute::uint128_t*>(to + (column - half * 64) * 128 +
                                                  ((m * 4 + warp) ^ column % 8) * 16));
        }
      }
      publish(p_.columns, to, token, tile.n * 128 + half * 64);
    }
  }

 private:
  __device__ void barrier() const { asm volatile("bar.sync %0, 128;" ::"r"(barrier_) : "memory"); }

  __device__ void scale(const float* sums, const Tile& tile, int token, float (&inverse)[2][2],
                        float& tile_inverse) {
    constexpr float kSmallest = 0x1p-100f, kLargest = 448.0f;
    const int warp = thread_ / 32, lane = thread_ % 32;
    float all = kSmallest;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = kSmallest;
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const float* v = sums + m * 64 + j * 4 + 2 * h;
          most = max_or_nan(max_or_nan(most, fabsf(v[0])), fabsf(v[1]));
        }
        most = max_or_nan(most, __shfl_xor_sync(~0u, most, 1));
        most = max_or_nan(most, __shfl_xor_sync(~0u, most, 2));
        all = max_or_nan(all, most);
        inverse[m][h] = kLargest / most;
        const int r = token + m * 64 + warp * 16 + h * 8 + lane / 4;
        if (lane % 4 == 0 && r < p_.epilogue.rows) {
          p_.row_scales[int64_t{tile.n} * p_.epilogue.rows + r] = most / kLargest;
        }
      }
    }
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      all = max_or_nan(all, __shfl_xor_sync(~0u, all, step));
    }
    if (lane == 0) shared_.maxima[warp] = all;
    barrier();
    all = max_or_nan(max_or_nan(shared_.maxima[0], shared_.maxima[1]),
                     max_or_nan(shared_.maxima[2], shared_.maxima[3]));
    tile_inverse = kLargest / all;
    if (thread_ == 0 && token < p_.epilogue.rows) {
      const int across = int(ceil_div(p_.epilogue.rows, kBlock));
      p_.tile_scales[int64_t{tile.n} * across + token / kBlock] = all / kLargest;
    }
  }

  // A half that no copy reads any more.
  __device__ uint8_t* next_half() {
    if (thread_ == 0) cute::tma_store_wait<kBuffers - 1>();
    barrier();
    uint8_t* half = shared_.halves[turn_];
    turn_ = (turn_ + 1) % kBuffers;
    return half;
  }

  __device__ void publish(const CUtensorMap& map, const uint8_t* half, int column, int row) {
    cute::tma_store_fence();
    barrier();
    if (thread_ == 0) {
      cute::SM90_TMA_STORE_2D::copy(&map, half, column, row);
      cute::tma_store_arrive();
    }
  }

  const QuantizingParams& p_;
  Shared& shared_;
  int barrier_, thread_, turn_ = 0;
};

template <class Base, int kBuffers>
struct QuantizingTraits : Base {
  using Params = QuantizingParams;
  using Store = QuantizingStore<Base::kTileM, kBuffers>;
  struct Staging {
    using Shared = typename Store::Shared;
  };
  static constexpr int kReserved = Base::kConsumers * int(sizeof(typename Staging::Shared)) + 1024;
  static constexpr int kStages =
      (Base::kSharedLimit - kReserved) /
      (Base::kRings * (Base::kStageBytes + 4 * (Base::kScalesA + Base::kScalesB)));
  static_assert(kStages >= 3 && Base::kRows == 128);

  __device__ static Store make_store(const Params& p, typename Staging::Shared& shared,
                                     int consumer) {
    return Store(p, shared, consumer);
  }

  // Row 8 jj + 2 q + e of 16 in shared memory is row 4 q + 2 jj + e: dimensions k, e, q, jj, 16s.
  __device__ static void load_b(const Params& p, uint64_t* full, uint8_t* to, int k, int row,
                                int rank) {
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    const int skip = rank * Base::kTileN / Base::kCtas, group = (row + skip) / 16;
    to += skip * kBoxRowBytes;
    if constexpr (Base::kCtas > 1) {
      cute::SM90_TMA_LOAD_MULTICAST_5D::copy(&p.b, full, uint16_t{0b11}, kHint, to, k, 0, 0, 0,
                                             group);
    } else {
      cute::SM90_TMA_LOAD_5D::copy(&p.b, full, kHint, to, k, 0, 0, 0, group);
    }
  }

  static const char* encode_b(const Problem& p, CUtensorMap* map) {
    static const auto encode =
        driver_entry<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
    const cuuint64_t ld = cuuint64_t(p.ldb);
    const cuuint64_t sizes[5] = {cuuint64_t(p.k), 2, 4, 2, cuuint64_t(p.n / 16)};
    const cuuint64_t strides[4] = {ld, 4 * ld, 2 * ld, 16 * ld};
    const cuuint32_t box[5] = {kBoxRowBytes, 2, 4, 2, Base::kTileN / Base::kCtas / 16};
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    const CUresult status =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 5, const_cast<void*>(p.b), sizes, strides, box,
               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return status == CUDA_SUCCESS ? nullptr : "the driver refuses the map of permuted rows";
  }
};

// Where a quantised product goes: (M, N) and (N, M) bytes, (N / 128, M) and (N / 128, M / 128)
// scales.
struct QuantizedOutput {
  void *rows, *columns;
  float *row_scales, *tile_scales;
};

template <class T>
const char* run_quantizing(const Problem& p, const QuantizedOutput& out,
                           const LaunchContext& context) {
  using G = Gemm<T>;
  QuantizingParams params;
  if (p.m % 128 != 0 || p.n % 128 != 0) return "M and N must be multiples of 128";
  if (const char* refusal = G::fill(p, params)) return refusal;
  if (const char* refusal = T::encode_b(p, &params.b)) return refusal;
  if (const char* refusal = G::encode_operand(out.rows, p.n, p.m, p.n, 64, &params.rows)) {
    return refusal;
  }
  if (const char* refusal = G::encode_operand(out.columns, p.m, p.n, p.m, 64, &params.columns)) {
    return refusal;
  }
  params.row_scales = out.row_scales;
  params.tile_scales = out.tile_scales;
  return G::launch(params, context);
}

}  // namespace fusedops::fp8
