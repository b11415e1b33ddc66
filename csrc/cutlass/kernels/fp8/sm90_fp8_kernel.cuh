// d (M, N) = act((a scale_a) @ (b scale_b)^T + bias) of FP8 matrices whose rows are contiguous in
// K. WGMMA's FP8 accumulators keep about 14 bits of a sum: each 128 of K are summed from nothing,
// and added to fp32 registers with their scales. While a warpgroup adds, another one multiplies.
//
// One producer thread for each ring copies the tiles of a step of K by TMA, and the scales that
// rows have; a persistent grid walks the output tiles. The way out is that of the 16-bit kernels.
#pragma once

#include <utility>

#include <cutlass/arch/reg_reconfig.h>

#include "csrc/common/device/pdl.cuh"
#include "csrc/cutlass/kernels/fp8/sm90_fp8_traits.cuh"
#include "csrc/cutlass/kernels/hopper/sm90_pipeline.cuh"
#include "csrc/cutlass/kernels/hopper/wgmma.cuh"

namespace fusedops::fp8 {

template <class T>
struct Kernel {
  using Params = typename T::Params;
  using Shared = KernelShared<T>;
  using Place = sm90::Place;
  static constexpr int kSharedBytes = int(sizeof(Shared));
  static constexpr int kAcc = T::kColumns / 2;  // accumulators of a thread in a wave
  static constexpr int kSums = T::kWaves * kAcc;
  static constexpr int kBytesA = T::kTileM * kBoxRowBytes;

  // The tiles of a ring: one, and then every so many.
  struct Walk {
    int index, step;
    __device__ explicit Walk(int ring) {
      const int clusters = gridDim.x / T::kCtas;
      index = blockIdx.x / T::kCtas + ring * clusters;
      step = clusters * T::kRings;
    }
    __device__ bool valid(const Params& p) const { return index < p.schedule.count; }
    __device__ void next() { index += step; }
  };
  __device__ static Tile tile_of(const Params& p, int index) {
    return sm90::tile_at(p.schedule, T::kCtas, 1, index);
  }

  // ---- producer ----

  // Bytes of the scales of a tile's rows, whole units of 16.
  template <int kTile>
  __device__ static int scale_bytes(int row, int rows) {
    return max(0, min(kTile, int(round_up(rows, 4)) - row)) * int(sizeof(float));
  }
  __device__ static void load_scales(const Scales& scales, uint64_t* full, float* to, int row,
                                     int step, int bytes) {
    if (bytes == 0) return;
    cute::SM90_BULK_COPY_G2S::copy(scales.data + step * scales.block_stride + row, full, to, bytes);
  }

  __device__ static void produce(const Params& p, Shared& shared, int ring, int rank) {
    Place place;
    for (Walk walk(ring); walk.valid(p); walk.next()) {
      const Tile tile = tile_of(p, walk.index);
      const int row = tile.m * T::kTileM, column = tile.n * T::kTileN;
      const int bytes_a =
          T::kScalesA > 0 && !p.a_by_tile ? scale_bytes<T::kTileM>(row, p.epilogue.rows) : 0;
      const int bytes_b = T::kScalesB > 0 ? scale_bytes<T::kTileN>(column, p.epilogue.columns) : 0;
      for (int step = 0; step < p.schedule.k_steps; ++step, place.advance(T::kStages)) {
        uint64_t* full = &shared.full[ring][place.stage];
        uint8_t* to = shared.stages[ring][place.stage];
        auto& scales = shared.scales[ring][place.stage];
        sm90::wait_barrier(shared_address(&shared.empty[ring][place.stage]), place.parity ^ 1);
        expect_bytes(shared_address(full), T::kStageBytes + bytes_a + bytes_b);
        sm90::load_box<false>(p.a, full, to, step * kBlock, row);
        T::load_b(p, full, to + kBytesA, step * kBlock, column, rank);
        load_scales(p.scale_a, full, scales.a, row, step, bytes_a);
        load_scales(p.scale_b, full, scales.b, column, step, bytes_b);
      }
    }
  }

  // ---- consumers ----

  // Each warp tells all blocks of the cluster that it has read a stage.
  __device__ static void release(uint64_t& empty) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
    if constexpr (T::kCtas == 1) {
      if (lane == 0) arrive(shared_address(&empty));
    } else {
      sm90::arrive_remote(sm90::address_of_rank(shared_address(&empty), lane % T::kCtas),
                          lane < T::kCtas);
    }
  }

  template <size_t... kI>
  __device__ __forceinline__ static void fma(float (&acc)[kAcc], uint64_t a, uint64_t b,
                                             cute::SM90::GMMA::ScaleOut scale,
                                             std::index_sequence<kI...>) {
    Atom<typename T::A, typename T::B>::fma(a, b, acc[kI]..., scale);
  }

  // acc = 64 rows of A by B, over 128 of K.
  __device__ __forceinline__ static void multiply(float (&acc)[kAcc], uint32_t a, uint32_t b) {
    using cute::SM90::GMMA::ScaleOut;
    wgmma::settle(acc);
    wgmma::fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // wgmma::kStepK is 32 bytes
      fma(acc, wgmma::descriptor(a) + i * wgmma::kStepK, wgmma::descriptor(b) + i * wgmma::kStepK,
          i == 0 ? ScaleOut::Zero : ScaleOut::One, std::make_index_sequence<kAcc>{});
    }
    wgmma::commit();
  }

  // The scales of this thread's two rows of each wave.
  struct RowScales {
    float upper[T::kWaves], lower[T::kWaves];
  };
  __device__ __forceinline__ static int first_row() {
    return int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4;
  }

  // sums += acc, scaled. columns: the scales of B's rows, where each has one.
  __device__ __forceinline__ static void promote(float* sums, const float (&acc)[kAcc], float upper,
                                                 float lower, const float* columns) {
#pragma unroll
    for (int j = 0; j < kAcc; j += 4) {
      float2 b{1.0f, 1.0f};
      if constexpr (T::kScaling == Scaling::kRowRow) {
        b = *reinterpret_cast<const float2*>(columns + j * 2 + threadIdx.x % 4 * 2);
      }
      if constexpr (T::kScaling == Scaling::kResult) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[j + i] += acc[j + i];
      } else {
        sums[j] = fmaf(upper * b.x, acc[j], sums[j]);
        sums[j + 1] = fmaf(upper * b.y, acc[j + 1], sums[j + 1]);
        sums[j + 2] = fmaf(lower * b.x, acc[j + 2], sums[j + 2]);
        sums[j + 3] = fmaf(lower * b.y, acc[j + 3], sums[j + 3]);
      }
    }
  }

  // Scales that 128 rows of an operand share, one step ahead of their use.
  class TileScale {
   public:
    __device__ TileScale(const Scales& scales, int row, int rows, int steps)
        : at_(scales.data + int64_t{min(row, rows - 1) / kBlock} * scales.row_stride),
          stride_(scales.block_stride),
          left_(steps),
          next_(__ldg(at_)) {}
    __device__ float take() {
      const float now = next_;
      at_ += stride_;
      if (--left_ > 0) next_ = __ldg(at_);
      return now;
    }

   private:
    const float* at_;
    int64_t stride_;
    int left_;
    float next_;
  };

  // Warpgroups that take turns at the tensor cores.
  __device__ static void wait_turn(int consumer) {
    if constexpr (T::kTurns) asm volatile("bar.sync %0, 256;" ::"r"(1 + consumer) : "memory");
  }
  __device__ static void give_turn(int consumer) {
    if constexpr (T::kTurns) asm volatile("bar.arrive %0, 256;" ::"r"(2 - consumer) : "memory");
  }

  // sums (of this warpgroup, whose first row in the tile is `row`) = A's tile by B's.
  __device__ static void multiply_tile(const Params& p, Shared& shared, int ring, const Tile& tile,
                                       int row, bool last_tile, Place& place,
                                       float (&sums)[kSums]) {
    constexpr bool kScaled = T::kScaling != Scaling::kResult;
    constexpr bool kRowRow = T::kScaling == Scaling::kRowRow;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
    // One scale for 128 rows of A where A has such, else of B.
    const bool of_a = kRowRow && p.a_by_tile;
    TileScale tile_scale(
        of_a ? p.scale_a : p.scale_b, of_a ? tile.m * T::kTileM + row : tile.n * T::kTileN,
        of_a ? p.epilogue.rows : p.epilogue.columns, kScaled ? p.schedule.k_steps : 1);
    float acc[kAcc];
    for (int step = 0; step < p.schedule.k_steps; ++step, place.advance(T::kStages)) {
      const auto& scales = shared.scales[ring][place.stage];
      const uint32_t stage = shared_address(shared.stages[ring][place.stage]);
      sm90::wait_barrier(shared_address(&shared.full[ring][place.stage]), place.parity);
      RowScales rows;
#pragma unroll
      for (int wave = 0; kScaled && wave < T::kWaves; ++wave) {
        const int at = row + wave * 64 + first_row();
        rows.upper[wave] = of_a ? 1.0f : scales.a[at];
        rows.lower[wave] = of_a ? 1.0f : scales.a[at + 8];
      }
      const float shared_scale = kScaled && (!kRowRow || of_a) ? tile_scale.take() : 1.0f;
#pragma unroll
      for (int wave = 0; wave < T::kWaves; ++wave) {
        const bool last = wave == T::kWaves - 1;
        wait_turn(row / T::kRows);
        multiply(acc, stage + (row + wave * 64) * kBoxRowBytes, stage + kBytesA);
        // The last turn of all is given to nobody.
        if (row == 0 || !last_tile || !last || step + 1 < p.schedule.k_steps) {
          give_turn(row / T::kRows);
        }
        wgmma::wait<0>();
        wgmma::settle(acc);
        if (last && !kRowRow) release(shared.empty[ring][place.stage]);
        promote(sums + wave * kAcc, acc, rows.upper[wave] * shared_scale,
                rows.lower[wave] * shared_scale, scales.b);
        if (last && kRowRow) release(shared.empty[ring][place.stage]);
      }
    }
  }

  // Multiplies the sums by the scales of whole rows and columns.
  __device__ static void scale_result(const Params& p, const Tile& tile, int row,
                                      float (&sums)[kSums]) {
    const auto scale_of = [](const Scales& scales, int at, int end) {
      return __ldg(scales.data + int64_t{min(at, end - 1)} * scales.row_stride);
    };
    const int first = tile.m * T::kTileM + row + first_row();
#pragma unroll
    for (int j = 0; j < kAcc; j += 4) {
      const int column = tile.n * T::kTileN + j * 2 + int(threadIdx.x) % 4 * 2;
      const float left = scale_of(p.scale_b, column, p.epilogue.columns);
      const float right = scale_of(p.scale_b, column + 1, p.epilogue.columns);
#pragma unroll
      for (int wave = 0; wave < T::kWaves; ++wave) {
        float* v = sums + wave * kAcc + j;
        v[0] *= left, v[1] *= right, v[2] *= left, v[3] *= right;
      }
    }
#pragma unroll
    for (int wave = 0; wave < T::kWaves; ++wave) {
      const float upper = scale_of(p.scale_a, first + wave * 64, p.epilogue.rows);
      const float lower = scale_of(p.scale_a, first + wave * 64 + 8, p.epilogue.rows);
#pragma unroll
      for (int j = 0; j < kAcc; ++j) sums[wave * kAcc + j] *= j % 4 < 2 ? upper : lower;
    }
  }

  // fp32 results get bias and activation here: the epilogue stores them as they are.
  __device__ static void finish_fp32(const Params& p, const Tile& tile, float (&sums)[kSums]) {
    const auto* bias = static_cast<const float*>(p.epilogue.bias);
    const Activation activation = p.epilogue.activation;
    if (bias == nullptr && activation == Activation::kNone) return;
    for_each_rolled<0, kSums / 8, 8>(
        [&]<int kUnit>(cute::Int<kUnit>) { return sums + kUnit * 8; },
        [&](float* v, int unit) {
          const int first = tile.n * T::kTileN + unit * 8 % kAcc * 2 + int(threadIdx.x) % 4 * 2;
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const int column = first + e / 4 * 8 + e % 2;
            if (bias != nullptr && column < p.epilogue.columns) v[e] += __ldg(bias + column);
          }
          with_activation(activation, [&]<Activation kActivation>() {
            resolve_rare<kActivation>(activation, [&]<Activation kNow>() {
#pragma unroll
              for (int e = 0; e < 8; ++e) v[e] = activate_as<kNow, Accuracy::kFloat32>(v[e]);
            });
          });
        });
  }

  __device__ static void consume(const Params& p, Shared& shared, int consumer) {
    const int ring = consumer % T::kRings, row = consumer / T::kRings * T::kRows;
    typename T::Store epilogue = T::make_store(p, shared.epilogue[consumer], consumer);
    Place place;
    Walk walk(ring);
    Tile tile = tile_of(p, walk.index);
    epilogue.prefetch(tile);
    if (row > 0) give_turn(1);
    while (walk.valid(p)) {
      float sums[kSums];
      const Tile now = tile;
      walk.next();
      multiply_tile(p, shared, ring, tile, row, !walk.valid(p), place, sums);
      if constexpr (T::kScaling == Scaling::kResult) scale_result(p, now, row, sums);
      if constexpr (T::kFp32) finish_fp32(p, now, sums);
      tile = tile_of(p, walk.index);
      epilogue.prefetch(tile);
      epilogue.run(sums, now, row);
    }
    epilogue.finish();
  }

  // ---- the kernel ----

  __device__ static void init_barriers(Shared& shared) {
    for (int ring = 0; ring < T::kRings; ++ring) {
      for (int i = 0; i < T::kStages; ++i) {
        init_barrier(shared_address(&shared.full[ring][i]), 1);
        init_barrier(shared_address(&shared.empty[ring][i]), T::kSharers * 4 * T::kCtas);
      }
    }
    for (auto& epilogue : shared.epilogue) T::Store::init(epilogue);
    fence_barrier_init();
  }

  __device__ static void run(const Params& p, uint8_t* raw) {
    Shared& shared = *reinterpret_cast<Shared*>(raw);
    const int rank = T::kCtas == 1 ? 0 : int(cute::block_rank_in_cluster());
    const int warpgroup = wgmma::warpgroup(), warp = threadIdx.x / 32;
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();
    if constexpr (T::kCtas > 1) cluster_sync();
    wait_for_predecessor();
    if (warpgroup == 0) {
      cutlass::arch::warpgroup_reg_dealloc<T::kProducerRegisters>();
      if (warp < T::kRings && threadIdx.x % 32 == 0) produce(p, shared, warp, rank);
      __syncwarp();
    } else {
      cutlass::arch::warpgroup_reg_alloc<T::kConsumerRegisters>();
      consume(p, shared, warpgroup - 1);
    }
    // A block stays until its partner has no more copies and arrivals for it.
    if constexpr (T::kCtas > 1) cluster_sync();
  }
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    fp8_kernel(const __grid_constant__ typename T::Params params) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Kernel<T>::run(params, raw);
}

}  // namespace fusedops::fp8
