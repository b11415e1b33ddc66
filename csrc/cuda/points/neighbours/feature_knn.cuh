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

#include "csrc/cuda/points/neighbours/feature_rows.cuh"

namespace fusedops {

inline constexpr int kFeatureBins = 64;  // of a query and a set; tile i belongs to set i % Sets

// What a warp keeps of one query.
struct FeatureQuery {
  uint64_t* best;      // [list] ascending
  uint64_t* scratch;   // [scratch], where list > 32
  uint32_t* buffered;  // [room] positions in the cloud
};

// Merges the buffered candidates of a query into its best; returns the key of the k-th.
template <class S>
__device__ __noinline__ uint64_t rank_candidates(FeatureQuery query, int count, int list, int k,
                                                 const S* row, const S* cloud, int dim,
                                                 bool vectors) {
  const int lane = threadIdx.x % 32;
  const uint64_t empty = empty_key<Select::kNearest, float>(0x7f800001u);
  const int before = query.best[0] < empty ? list : 0;
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
      query.scratch[before + start + lane] = key;
    }
  }
  if (list > 32 && count > 0) {
    const int used = before + (count + 31) / 32 * 32;
    int n = list;
    while (n < used) n *= 2;
    for (int i = lane; i < before; i += 32) query.scratch[i] = query.best[i];
    for (int i = used + lane; i < n; i += 32) query.scratch[i] = empty;
    __syncwarp();
    warp_sort_shared(query.scratch, n, lane);
    for (int i = lane; i < list; i += 32) query.best[i] = query.scratch[i];
  }
  __syncwarp();
  return query.best[k - 1];
}

// A warp's candidates in shared memory, `room` of them: whole rows come in pieces of 16 bytes, so
// that lanes, which take a row each, do not read 32 places of global memory at once.
template <class S>
struct StagedCandidates {
  static constexpr int kValues = 16 / sizeof(S);
  const S* cloud;
  char* to;
  int dim, room;

  __device__ __forceinline__ int pitch() const { return dim * static_cast<int>(sizeof(S)) + 16; }

  // Starts copying candidates begin .. begin + room, up to count.
  __device__ __forceinline__ void fetch(const uint32_t* positions, int begin, int count) const {
    const int pieces = dim / kValues, rows = min(room, count - begin);
    for (int i = static_cast<int>(threadIdx.x % 32); i < rows * pieces; i += 32) {
      const int row = i / pieces, piece = i % pieces;
      const S* from = cloud + int64_t{positions[begin + row]} * dim + piece * kValues;
      copy_async(shared_address(to + row * pitch() + piece * 16), from, 16);
    }
    commit_copies();
  }

  // Exactly `exact_distance`.
  __device__ __forceinline__ float distance(const S* query, int row) const {
    const char* from = to + row * pitch();
    float d = 0.0f;
#pragma unroll 4
    for (int c = 0; c < dim; c += kValues) {
      const auto q = *reinterpret_cast<const Vec<S, kValues>*>(query + c);
      const auto p = *reinterpret_cast<const Vec<S, kValues>*>(from + c * sizeof(S));
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const float delta = to_compute(q.value[i]) - to_compute(p.value[i]);
        d = fmaf(delta, delta, d);
      }
    }
    return d;
  }
};

// At or above the k-th smallest of 32 Count values, none of them NaN: the largest value with fewer
// than k below it, bit by bit; the last bits of a bound are not worth the time.
template <int Count>
__device__ __noinline__ float kth_smallest(const float* values, int k) {
  constexpr int kBoundBits = 14;
  const int lane = threadIdx.x % 32;
  uint32_t ordered[Count];
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const uint32_t bits = __float_as_uint(values[i * 32 + lane]);
    ordered[i] = bits >> 31 ? ~bits : bits | 0x80000000u;
  }
  uint32_t result = 0;
  for (int bit = 31; bit >= kBoundBits; --bit) {
    const uint32_t trial = result | 1u << bit;
    int below = 0;
#pragma unroll
    for (int i = 0; i < Count; ++i) below += __popc(__ballot_sync(kFullWarp, ordered[i] < trial));
    if (below < k) result = trial;
  }
  result |= (1u << kBoundBits) - 1;
  // NOTE: infinity with low bits is NaN, which the minimum drops
  return fminf(__uint_as_float(result >> 31 ? result & 0x7fffffffu : ~result), INFINITY);
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
  const int tile_elements = kFeatureTile * layout.stride;
  __nv_bfloat16* point_stages = query_tile + tile_elements * layout.splits;
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
        reinterpret_cast<uint64_t*>(storage + layout.scratch_at()) + warp * layout.scratch;
    state.buffered = buffers + (warp * kFeatureRows + row) * layout.room;
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
              point_stages + stage * tile_elements * layout.splits);
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
      wait_for_copies();
      __syncthreads();
      if (layout.stages == 2 && start + kFeatureTile < length) {
        load_points(start + kFeatureTile, 1 - stage, scale);
      }
      const __nv_bfloat16* points_here = point_stages + stage * tile_elements * layout.splits;
      float product[kFeatureTile / 8][4] = {};
      tile_products<Split>(query_tile, points_here, layout.width, layout.stride, lane, warp,
                           product);
      use(start, product, tile_norms + stage * kFeatureTile + quad_column);
      if (layout.stages == 1) {
        __syncthreads();
        if (start + kFeatureTile < length) load_points(start + kFeatureTile, 0, scale);
      }
    }
    wait_for_copies();
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
  float* passing = reinterpret_cast<float*>(buffers) + warp * kFeatureRows * layout.room;
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
  const auto rank_full = [&] {
    __syncwarp();
    unsigned full = __ballot_sync(
        kFullWarp, lane < kFeatureRows && counts[warp * kFeatureRows + lane % kFeatureRows] >
                                              layout.room - kFeatureTile / 2);
    for (; full != 0; full &= full - 1) rank(__ffs(full) - 1);
  };
  const int slots[2] = {warp * kFeatureRows + quad_row, warp * kFeatureRows + quad_row + 8};
  stream(1.0f, [&](int64_t start, const auto& product, const float* norms) {
  // Half a tile at a time: that many candidates of a query may come at once
#pragma unroll
    for (int n = 0; n < kFeatureTile / 8; ++n) {
      if (n % (kFeatureTile / 16) == 0) rank_full();
      const float limit[2] = {limits[slots[0]], limits[slots[1]]};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float bound = fmaf(-2.0f, product[n][i], norms[n * 8 + i % 2]);
        // NOTE: written so that NaN is let through: the exact distance decides
        if (!(bound > limit[i / 2])) {
          const int slot = slots[i / 2];
          const int64_t position = start + n * 8 + quad_column + i % 2;
          if (position >= length || slot >= num_queries) continue;
          const int place = atomicAdd(&counts[slot], 1);
          buffers[slot * layout.room + place] = static_cast<uint32_t>(position);
        }
      }
    }
  });

  // Rank what is left and write
  const int64_t base = points.index_base(group.cloud);
  if (layout.staged) {
    const StagedCandidates<S> staged{
        cloud, reinterpret_cast<char*>(point_stages) + warp * kFeatureRows * layout.staged_bytes(),
        dim, kFeatureRows * layout.stages};
    const int last =
        static_cast<int>(min(num_queries - warp * kFeatureRows, int64_t{kFeatureRows}));
    const auto candidates = [&](int row) { return query_state(row).buffered; };
    const auto count_of = [&](int row) { return counts[warp * kFeatureRows + row]; };
    if (last > 0) staged.fetch(candidates(0), 0, count_of(0));
    for (int row = 0; row < last; ++row) {
      const int slot = warp * kFeatureRows + row, count = count_of(row);
      const S* features = static_cast<const S*>(queries.points) + (first_query + slot) * dim;
      uint64_t best = query_state(row).best[lane], key = empty;
      int begin = 0;
      do {
        wait_for_copies();
        __syncwarp();
        const int r = lane - begin % 32;
        if (r >= 0 && r < staged.room && begin + r < count) {
          const uint32_t position = candidates(row)[begin + r];
          key = candidate_key<Select::kNearest>(staged.distance(features, r), position);
          key = min(key, empty);
        }
        __syncwarp();
        begin += staged.room;
        if (begin < count) {
          staged.fetch(candidates(row), begin, count);
        } else if (row + 1 < last) {
          staged.fetch(candidates(row + 1), 0, count_of(row + 1));
        }
        if (begin % 32 == 0 || begin >= count) {
          best = warp_merge(best, warp_sort(key, lane), lane);
          key = empty;
        }
      } while (begin < count);
      const uint64_t first = __shfl_sync(kFullWarp, best, 0);
      if (lane < k) {
        write_neighbour<Select::kNearest>(out, first_query + slot, lane, best, first, empty, base);
      }
    }
    return;
  }
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
