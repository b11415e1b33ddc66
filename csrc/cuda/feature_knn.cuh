// k-NN among feature vectors (D > 16): candidates by Tensor Cores, ranked by exact distances.
//
// |q|^2 + |p|^2 - 2 q.p with bf16 products and fp32 sums is wrong by at most `slack` times
// (|q|^2 + |p|^2): exact inputs (bf16) need one product a pair, others three (value = high + low,
// low x low left out). Two passes over the points: the first keeps the least upper bound in each of
// 64 or more bins a query, whose k-th smallest bounds the k-th neighbour; points with a lower bound
// under that, about 1.2 k of them, are the candidates of the second. Their distances are computed
// as sums of squared differences in fp32, exactly as the other algorithms compute them, so results
// do not depend on the products' precision. Nothing of size M x N exists.
//
// One block serves 64 queries, a warp 16; tiles of 64 points stream through shared memory.
#pragma once

#include <cuda_bf16.h>

#include "cuda/neighbours.cuh"

namespace fusedops {

inline constexpr int kFeatureWarps = 4;
inline constexpr int kFeatureRows = 16;      // queries of a warp
inline constexpr int kFeatureTile = 64;      // points
inline constexpr int kFeatureRoom = 96;      // candidates of a query before they are ranked
inline constexpr int kFeatureScratch = 256;  // keys: 128 and kFeatureRoom, a power of two
inline constexpr int kFeatureBins = 64;      // of a query and a set; a set is one tile in `Sets`
inline constexpr int kFeatureGroupBits = 6;
inline constexpr int kFeaturePad = 8;  // of a row in shared memory, against bank conflicts

// Rows as the Tensor Cores read them.
struct FeatureRows {
  __nv_bfloat16* high;  // (rows, width)
  __nv_bfloat16* low;   // the rest of the value, or null where there is none
  float* norm;          // (rows,) lower bound of |row|^2, NaN where it is not finite
};

__host__ __device__ constexpr int feature_width(int dim) { return (dim + 15) / 16 * 16; }

inline float feature_slack(int dim, bool split) {
  return static_cast<float>(dim + 64) * 0x1p-21f + (split ? 0x1p-14f : 0.0f);
}

// One warp a row. S: how the row is stored.
template <class S>
__global__ void feature_prepare_kernel(const S* __restrict__ rows, int64_t count, int dim,
                                       float slack, FeatureRows out) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (row >= count) return;
  const int width = feature_width(dim);
  float norm = 0.0f;
  for (int d = lane; d < width; d += 32) {
    const float value = d < dim ? to_compute(rows[row * dim + d]) : 0.0f;
    const __nv_bfloat16 high = __float2bfloat16_rn(value);
    out.high[row * width + d] = high;
    if (out.low) out.low[row * width + d] = __float2bfloat16_rn(value - __bfloat162float(high));
    norm = fmaf(value, value, norm);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) norm += __shfl_xor_sync(kFullWarp, norm, step);
  if (lane == 0) out.norm[row] = norm < INFINITY ? norm * (1.0f - slack) : NAN;
}

struct FeatureLayout {
  int width, stride, splits, stages, list;
  __host__ __device__ int matrix_bytes() const {
    return kFeatureTile * stride * 2;  // of one part of 64 rows
  }
  __host__ __device__ int lists_at() const { return matrix_bytes() * splits * (1 + stages); }
  __host__ __device__ int scratch_at() const {
    return lists_at() + kFeatureWarps * kFeatureRows * list * 8;
  }
  __host__ __device__ int buffers_at() const {
    return scratch_at() + (list > 32 ? kFeatureWarps * kFeatureScratch * 8 : 0);
  }
  __host__ __device__ int norms_at() const {
    return buffers_at() + kFeatureWarps * kFeatureRows * kFeatureRoom * 4;
  }
  __host__ __device__ int bytes() const {
    // norms of the tiles; counts, limits and norms of the queries
    return norms_at() + (stages * kFeatureTile + 3 * kFeatureWarps * kFeatureRows) * 4;
  }
};

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const __nv_bfloat16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// 16 bytes; zeros where `valid` is false.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group 0;"); }

// Starts copying 64 rows, both parts; rows from `count` on become zeros.
__device__ __forceinline__ void copy_rows(const FeatureRows& rows, int64_t first, int64_t count,
                                          const FeatureLayout& layout, __nv_bfloat16* to) {
  const int chunks = layout.width / 8;
  for (int i = threadIdx.x; i < kFeatureTile * chunks * layout.splits; i += blockDim.x) {
    const int part = i / (kFeatureTile * chunks);
    const int row = i / chunks % kFeatureTile;
    const int at = i % chunks * 8;
    const bool valid = row < count;
    const __nv_bfloat16* from = part ? rows.low : rows.high;
    copy_async(to + (part * kFeatureTile + row) * layout.stride + at,
               from + (valid ? (first + row) * layout.width + at : 0), valid);
  }
}

// The exact distance of a pair, summed like in every other algorithm.
template <class S>
__device__ __forceinline__ float exact_distance(const S* __restrict__ query,
                                                const S* __restrict__ point, int dim,
                                                bool vectors) {
  float d = 0.0f;
  if (vectors) {
#pragma unroll 4
    for (int c = 0; c < dim; c += 4) {
      const auto q = *reinterpret_cast<const Vec<S, 4>*>(query + c);
      const auto p = *reinterpret_cast<const Vec<S, 4>*>(point + c);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float delta = to_compute(q.value[i]) - to_compute(p.value[i]);
        d = fmaf(delta, delta, d);
      }
    }
  } else {
    for (int c = 0; c < dim; ++c) {
      const float delta = to_compute(query[c]) - to_compute(point[c]);
      d = fmaf(delta, delta, d);
    }
  }
  return d;
}

// What a warp keeps of one query.
struct FeatureQuery {
  uint64_t* best;      // [list] ascending
  uint64_t* scratch;   // [kFeatureScratch], where list > 32
  uint32_t* buffered;  // [room] positions in the cloud
};

// Merges the buffered candidates of a query into its best; returns the key of the k-th.
template <class S>
__device__ __noinline__ uint64_t rank_candidates(FeatureQuery query, int count, int list, int k,
                                                 const S* row, const S* cloud, int dim,
                                                 bool vectors) {
  const int lane = threadIdx.x % 32;
  const uint64_t empty = empty_key<Select::kNearest, float>(0x7f800001u);
  for (int start = 0; start < count; start += 32) {
    uint64_t key = empty;
    if (start + lane < count) {
      const uint32_t position = query.buffered[start + lane];
      const float d = exact_distance(row, cloud + int64_t{position} * dim, dim, vectors);
      key = min(candidate_key<Select::kNearest>(d, position), empty);
    }
    if (list == 32) {
      query.best[lane] = warp_merge(query.best[lane], warp_sort(key, lane), lane);
    } else {
      query.scratch[list + start + lane] = key;
    }
  }
  if (list > 32) {
    for (int i = lane; i < list; i += 32) query.scratch[i] = query.best[i];
    for (int i = list + (count + 31) / 32 * 32 + lane; i < kFeatureScratch; i += 32) {
      query.scratch[i] = empty;
    }
    __syncwarp();
    warp_sort_shared(query.scratch, kFeatureScratch, lane);
    for (int i = lane; i < list; i += 32) query.best[i] = query.scratch[i];
  }
  __syncwarp();
  return query.best[k - 1];
}

// Products of the warp's 16 queries with 64 points, both in shared memory.
template <bool Split>
__device__ __forceinline__ void tile_products(const __nv_bfloat16* query_tile,
                                              const __nv_bfloat16* point_tile,
                                              const FeatureLayout& layout, int lane, int warp,
                                              float (&product)[kFeatureTile / 8][4]) {
  const int part = kFeatureTile * layout.stride;  // elements of one part of 64 rows
  const __nv_bfloat16* a_row =
      query_tile + (warp * kFeatureRows + lane % 16) * layout.stride + lane / 16 * 8;
  const __nv_bfloat16* b_row =
      point_tile + (lane % 8 + lane / 16 * 8) * layout.stride + lane / 8 % 2 * 8;
  for (int at = 0; at < layout.width; at += 16) {
    uint32_t a_high[4];
    uint32_t a_low[4];
    load_matrices(a_high, a_row + at);
    if constexpr (Split) load_matrices(a_low, a_row + part + at);
#pragma unroll
    for (int n = 0; n < kFeatureTile / 16; ++n) {
      uint32_t b[4];
      load_matrices(b, b_row + n * 16 * layout.stride + at);
      multiply_add(product[2 * n], a_high, b[0], b[1]);
      multiply_add(product[2 * n + 1], a_high, b[2], b[3]);
      if constexpr (Split) {
        multiply_add(product[2 * n], a_low, b[0], b[1]);
        multiply_add(product[2 * n + 1], a_low, b[2], b[3]);
        load_matrices(b, b_row + part + n * 16 * layout.stride + at);
        multiply_add(product[2 * n], a_high, b[0], b[1]);
        multiply_add(product[2 * n + 1], a_high, b[2], b[3]);
      }
    }
  }
}

// The k-th smallest of 32 Count values, `Count` a lane at stride 32, none of them NaN: the largest
// value with fewer than k below it, bit by bit.
template <int Count>
__device__ __noinline__ float kth_smallest(const float* values, int k) {
  const int lane = threadIdx.x % 32;
  uint32_t ordered[Count];
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const uint32_t bits = __float_as_uint(values[i * 32 + lane]);
    ordered[i] = bits >> 31 ? ~bits : bits | 0x80000000u;
  }
  uint32_t result = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t trial = result | 1u << bit;
    int below = 0;
#pragma unroll
    for (int i = 0; i < Count; ++i) below += __popc(__ballot_sync(kFullWarp, ordered[i] < trial));
    if (below < k) result = trial;
  }
  return __uint_as_float(result >> 31 ? result & 0x7fffffffu : ~result);
}

template <class S, bool Split, int Sets>
__global__ void __launch_bounds__(kFeatureWarps * 32, Sets > 2 ? 2 : 3)
    feature_knn_kernel(Clouds points, Clouds queries, FeatureRows point_rows,
                       FeatureRows query_rows, NeighbourOutput<float> out, FeatureLayout layout,
                       float slack, bool vectors) {
  extern __shared__ __align__(16) char storage[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int k = static_cast<int>(out.k);
  const int dim = static_cast<int>(points.dim);
  const RowGroup group = find_row_group(queries, blockIdx.x, kFeatureGroupBits);
  if (group.first >= group.length) return;
  const int64_t length = points.length(group.cloud);
  const int64_t first_point = points.first_row(group.cloud);
  const int64_t first_query = queries.first_row(group.cloud) + group.first;
  const int64_t num_queries = min(group.length - group.first, int64_t{kFeatureTile});

  auto* query_tile = reinterpret_cast<__nv_bfloat16*>(storage);
  const int part = kFeatureTile * layout.stride;  // elements of one part of 64 rows
  __nv_bfloat16* point_tiles = query_tile + part * layout.splits;
  auto* buffers = reinterpret_cast<uint32_t*>(storage + layout.buffers_at());
  auto* tile_norms = reinterpret_cast<float*>(storage + layout.norms_at());
  int* counts = reinterpret_cast<int*>(tile_norms + layout.stages * kFeatureTile);
  float* limits = reinterpret_cast<float*>(counts + kFeatureTile);
  float* query_norms = limits + kFeatureTile;
  const uint64_t empty = empty_key<Select::kNearest, float>(0x7f800001u);
  const auto query_state = [&](int row) {
    FeatureQuery state;
    state.best = reinterpret_cast<uint64_t*>(storage + layout.lists_at()) +
                 (warp * kFeatureRows + row) * layout.list;
    state.scratch =
        reinterpret_cast<uint64_t*>(storage + layout.scratch_at()) + warp * kFeatureScratch;
    state.buffered = buffers + (warp * kFeatureRows + row) * kFeatureRoom;
    return state;
  };
  const S* cloud = static_cast<const S*>(points.points) + first_point * dim;
  const auto rank = [&](int row) {
    const int slot = warp * kFeatureRows + row;
    const S* features = static_cast<const S*>(queries.points) + (first_query + slot) * dim;
    const uint64_t last = rank_candidates(query_state(row), counts[slot], layout.list, k, features,
                                          cloud, dim, vectors);
    __syncwarp();
    if (lane == 0) {
      counts[slot] = 0;
      // NOTE: what comes later has a larger index: as far as the k-th is too far. A NaN limit,
      // which lets everything through, must stay.
      const float limit =
          nextafterf(key_distance<Select::kNearest, float>(last) - query_norms[slot], -INFINITY);
      if (last < empty && limit < limits[slot]) limits[slot] = limit;
    }
    __syncwarp();
  };

  // Queries, the first tile, empty lists
  copy_rows(query_rows, first_query, num_queries, layout, query_tile);
  const auto load_points = [&](int64_t start, int stage, float scale) {
    copy_rows(point_rows, first_point + start, length - start, layout,
              point_tiles + stage * part * layout.splits);
    if (threadIdx.x < kFeatureTile) {
      const int64_t i = start + threadIdx.x;
      // NOTE: infinity keeps what is beyond the end out, whatever the limit
      tile_norms[stage * kFeatureTile + threadIdx.x] =
          i < length ? point_rows.norm[first_point + i] * scale : INFINITY;
    }
    commit_copies();
  };
  for (int i = threadIdx.x; i < kFeatureTile * layout.list; i += blockDim.x) {
    reinterpret_cast<uint64_t*>(storage + layout.lists_at())[i] = empty;
  }
  if (threadIdx.x < kFeatureTile) {
    const bool exists = threadIdx.x < num_queries;
    const float norm = exists ? query_rows.norm[first_query + threadIdx.x] : 0.0f;
    counts[threadIdx.x] = 0;
    query_norms[threadIdx.x] = norm;
    limits[threadIdx.x] = exists ? (norm == norm ? INFINITY : NAN) : -INFINITY;
  }

  const int quad_row = lane / 4;
  const int quad_column = lane % 4 * 2;
  // Calls use(start, product, norms) for every tile; norms are scaled
  const auto stream = [&](float scale, auto use) {
    if (length > 0) load_points(0, 0, scale);
    for (int64_t start = 0; start < length; start += kFeatureTile) {
      const int stage = layout.stages == 2 ? static_cast<int>(start / kFeatureTile % 2) : 0;
      wait_copies();
      __syncthreads();
      if (layout.stages == 2 && start + kFeatureTile < length) {
        load_points(start + kFeatureTile, 1 - stage, scale);
      }
      float product[kFeatureTile / 8][4] = {};
      tile_products<Split>(query_tile, point_tiles + stage * part * layout.splits, layout, lane,
                           warp, product);
      use(start, product, tile_norms + stage * kFeatureTile + quad_column);
      if (layout.stages == 1) {
        __syncthreads();
        if (start + kFeatureTile < length) load_points(start + kFeatureTile, 0, scale);
      }
    }
    wait_copies();
    __syncthreads();
  };

  // First pass: the least upper bound of every bin
  float bins[Sets][kFeatureTile / 8][4];
#pragma unroll
  for (int i = 0; i < Sets * kFeatureTile / 2; ++i) (&bins[0][0][0])[i] = INFINITY;
  stream((1.0f + slack) / (1.0f - slack),
         [&](int64_t start, const auto& product, const float* norms) {
           const int set = static_cast<int>(start / kFeatureTile % Sets);
#pragma unroll
           for (int b = 0; b < Sets; ++b) {
             if (b != set) continue;
#pragma unroll
             for (int n = 0; n < kFeatureTile / 8; ++n) {
#pragma unroll
               for (int i = 0; i < 4; ++i) {
                 const float bound = fmaf(-2.0f, product[n][i], norms[n * 8 + i % 2]);
                 bins[b][n][i] = fminf(bins[b][n][i], bound);
               }
             }
           }
         });

  // The k-th smallest bin of each query bounds its k-th neighbour. Bins pass through the buffers.
  constexpr int kBatch = kFeatureRows / Sets;  // queries at a time
  float* passing = reinterpret_cast<float*>(buffers) + warp * kFeatureRows * kFeatureRoom;
  for (int first = 0; first < kFeatureRows; first += kBatch) {
#pragma unroll
    for (int b = 0; b < Sets; ++b) {
#pragma unroll
      for (int n = 0; n < kFeatureTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = quad_row + i / 2 * 8 - first;
          if (row < 0 || row >= kBatch) continue;
          passing[(row * Sets + b) * kFeatureBins + n * 8 + quad_column + i % 2] = bins[b][n][i];
        }
      }
    }
    __syncwarp();
    for (int row = 0; row < kBatch; ++row) {
      const int slot = warp * kFeatureRows + first + row;
      const float bound = kth_smallest<2 * Sets>(passing + row * Sets * kFeatureBins, k);
      // In terms of lower bounds, which leave slack |q|^2 out: the same twice
      if (lane == 0 && slot < num_queries) limits[slot] = bound + 2.1f * slack * query_norms[slot];
    }
    __syncwarp();
  }

  // Second pass: candidates
  const int slots[2] = {warp * kFeatureRows + quad_row, warp * kFeatureRows + quad_row + 8};
  stream(1.0f, [&](int64_t start, const auto& product, const float* norms) {
    const float limit[2] = {limits[slots[0]], limits[slots[1]]};
#pragma unroll
    for (int n = 0; n < kFeatureTile / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float bound = fmaf(-2.0f, product[n][i], norms[n * 8 + i % 2]);
        // NOTE: written so that NaN is let through: the exact distance decides
        if (!(bound > limit[i / 2])) {
          const int slot = slots[i / 2];
          const int64_t position = start + n * 8 + quad_column + i % 2;
          if (position >= length || slot >= num_queries) continue;
          const int place = atomicAdd(&counts[slot], 1);
          buffers[slot * kFeatureRoom + place] = static_cast<uint32_t>(position);
        }
      }
    }
    __syncwarp();
    for (int row = 0; row < kFeatureRows; ++row) {
      if (counts[warp * kFeatureRows + row] > kFeatureRoom - kFeatureTile) rank(row);
    }
  });

  // Rank what is left and write
  const int64_t base = points.index_base(group.cloud);
  for (int row = 0; row < kFeatureRows; ++row) {
    const int slot = warp * kFeatureRows + row;
    if (slot >= num_queries) break;
    rank(row);
    const uint64_t* best = query_state(row).best;
    for (int j = lane; j < k; j += 32) {
      write_neighbour<Select::kNearest>(out, first_query + slot, j, best[j], best[0], empty, base);
    }
  }
}

}  // namespace fusedops
