// Furthest point sampling of clouds that do not fit in registers, of any dimension and in float64:
// the points are laid out once by dimension and stream through global memory at every step.
#pragma once

#include "csrc/common/device/cloud.cuh"
#include "csrc/common/fps_problem.h"
#include "csrc/cuda/points/sampling/fps_argmax.cuh"

namespace fusedops::fps {

inline constexpr int kStreamThreads = 512;
inline constexpr int kStreamPoints = 4;  // a thread computes together
inline constexpr int kStreamLoads = 16;  // in flight
inline constexpr int64_t kStagedDims = 4096;

__device__ __forceinline__ float add_square(float sum, float a, float b) {
  const float d = __fsub_rn(a, b);
  return __fadd_rn(sum, __fmul_rn(d, d));
}
__device__ __forceinline__ double add_square(double sum, double a, double b) {
  const double d = __dsub_rn(a, b);
  return __dadd_rn(sum, __dmul_rn(d, d));
}

// The points of one thread: positions first, first + stride, ... Nobody else touches their part of
// the workspace, so it needs no barrier.
template <class T>
struct Streamed {
  T* coordinates;  // [D][rows], shifted to the cloud's first row
  T* distance;     // [rows], likewise
  int64_t rows, dim;
  uint32_t first, stride, length;

  __device__ void load(const Problem& p, const Task& task) {
    for (int64_t i = first; i < length; i += stride) {
      bool nan = false;
      for (int64_t d = 0; d < dim; ++d) {
        const T x = load_as<T>(p.clouds.points, p.dtype, (task.first_row + i) * dim + d);
        coordinates[d * rows + i] = x;
        nan |= isnan(x);
      }
      distance[i] = nan ? kNanPoint<T> : static_cast<T>(INFINITY);
    }
  }

  // Takes `taken` out, updates the distances to `chosen`, returns the thread's furthest point.
  __device__ Candidate<T> step(const T* chosen, uint32_t taken) {
    if (taken % stride == first) distance[taken] = kTaken<T>;
    Candidate<T> best;
    int64_t i = first;
    for (; i + int64_t{kStreamPoints - 1} * stride < length; i += int64_t{kStreamPoints} * stride) {
      update<kStreamPoints>(i, chosen, best);
    }
    for (; i < length; i += stride) update<1>(i, chosen, best);
    return best;
  }

 private:
  // Points i, i + stride, ...: several, or several dimensions, in flight at a time.
  template <int kCount>
  __device__ __forceinline__ void update(int64_t i, const T* chosen, Candidate<T>& best) {
    T sum[kCount] = {};
    const T* column = coordinates + i;
#pragma unroll(kStreamLoads / kCount)
    for (int64_t d = 0; d < dim; ++d, column += rows) {
      const T c = chosen[d];
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        sum[j] = add_square(sum[j], column[int64_t{j} * stride], c);
      }
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int64_t index = i + int64_t{j} * stride;
      const T before = distance[index];
      const bool closer = sum[j] < before;  // never for a NaN
      if (closer) distance[index] = sum[j];
      const Bits<T> value = bits_of(closer ? sum[j] : before);
      if (value > best.value) best = {value, static_cast<uint32_t>(index)};
    }
  }
};

template <class T>
struct StreamShared {
  Candidate<T> warps[2][kMaxWarps];
  Found found[kMaxWarps];
};

template <class T>
__device__ void sample_stream(const Problem& p, const Task& task, StreamShared<T>& shared,
                              const Team& team, uint32_t& tag, T* workspace, T* chosen) {
  const int64_t rows = p.clouds.num_rows(), dim = p.clouds.dim;
  Streamed<T> points{workspace + task.first_row,
                     workspace + dim * rows + task.first_row,
                     rows,
                     dim,
                     team.rank * blockDim.x + threadIdx.x,
                     team.size * blockDim.x,
                     task.length};
  points.load(p, task);
  uint32_t last = task.start;
  const bool writes = team.rank == 0 && threadIdx.x == 0;
  if (writes) task.out[0] = task.index_base + last;
  for (uint32_t s = 1; s < task.count; ++s) {
    const int64_t at = (task.first_row + last) * dim;
    for (int64_t d = threadIdx.x; d < dim; d += blockDim.x) {
      chosen[d] = load_as<T>(p.clouds.points, p.dtype, at + d);
    }
    __syncthreads();
    Candidate<T>* slots = shared.warps[s & 1];
    post_warp(points.step(chosen, last), slots);
    const Candidate<T> best = best_of(slots);
    last = best.index;
    if (team.size > 1) {
      const Found own{best.value, best.index, 0.f, 0.f, 0.f};
      last = team_argmax<T>(own, team, ++tag, shared.found).index;
    }
    if (writes) task.out[s] = task.index_base + last;
  }
  __syncthreads();  // the next cloud reuses the shared memory
}

template <class T>
__global__ void __launch_bounds__(kStreamThreads)
    fps_stream_kernel(Problem p, uint32_t team_size, GridRecord* records, T* workspace) {
  __shared__ StreamShared<T> shared;
  extern __shared__ float4 dynamic[];
  const uint32_t team = blockIdx.x / team_size, teams = gridDim.x / team_size;
  const Team own{records + size_t{2} * team * team_size, team_size, blockIdx.x % team_size};
  uint32_t tag = 0;
  // The last sample's coordinates: in shared memory, or with very many of them behind the points
  T* chosen = reinterpret_cast<T*>(dynamic);
  const int64_t rows = p.clouds.num_rows();
  if (p.clouds.dim > kStagedDims) {
    chosen = workspace + rows * (p.clouds.dim + 1) + blockIdx.x * p.clouds.dim;
  }
  for (int64_t b = team; b < p.clouds.count; b += teams) {
    const Task task = task_of(p, b);
    if (own.rank == 0) pad_output(task);
    if (task.count > 0) sample_stream<T>(p, task, shared, own, tag, workspace, chosen);
  }
}

}  // namespace fusedops::fps
