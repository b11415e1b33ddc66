// The epilogue of the FP32 FMA GEMM (simt_gemm.cuh): threads own groups of 4 x 4 outputs, so that
// rows are stored straight from registers, 16 bytes each where D is aligned.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/cutlass/kernels/simt/simt_shape.cuh"
#include "csrc/cutlass/kernels/sm80/sm80_tile.cuh"

namespace fusedops::simt {

struct Group {
  float value[4][4];
};

// d = act(z + bias) for one group of 4 x 4 outputs, whose first is (m, n) of the tile.
__device__ __forceinline__ void store_group(const sm80::Output& output,
                                            const sm80::OutputTile& tile, Group z, int m, int n) {
  if (m >= tile.rows || n >= tile.cols) return;
  const int rows = min(4, tile.rows - m), cols = min(4, tile.cols - n);
  const auto store = [&](void* destination) {
    float* first = static_cast<float*>(destination) + m * output.ldd + n;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= rows) break;
      float* row = first + i * output.ldd;
      if (output.vectors && cols == 4) {
        *reinterpret_cast<float4*>(row) = {z.value[i][0], z.value[i][1], z.value[i][2],
                                           z.value[i][3]};
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (j < cols) row[j] = z.value[i][j];
        }
      }
    }
  };
  if (tile.bias != nullptr) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float bias = j < cols ? static_cast<const float*>(tile.bias)[n + j] : 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) z.value[i][j] += bias;
    }
  }
  if (tile.preact != nullptr) store(tile.preact);
  with_activation(output.activation, [&]<Activation kActivation>() {
    resolve_rare<kActivation>(output.activation, [&]<Activation kNow>() {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          z.value[i][j] = activate_as<kNow, Accuracy::kFloat32>(z.value[i][j]);
      }
    });
  });
  store(tile.d);
}

template <class G>
__device__ __forceinline__ Group group_of(const Sums<G>& sums, int group) {
  Group z;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      z.value[i][j] =
          sums.value[group / G::kShape.groups_n * 4 + i][group % G::kShape.groups_n * 4 + j];
    }
  }
  return z;
}

// Adds the slices as a tree: slice s of each thread's place ends up with group s, if there is one.
template <class G>
__device__ __forceinline__ Group add_slices(float* shared, const Place<G>& place,
                                            const Sums<G>& sums) {
  constexpr int kSlices = G::kShape.slices;
  auto* rows = reinterpret_cast<float4*>(shared);  // (slices, groups, 4, slice's threads)
  const int thread = threadIdx.x % G::kSliceThreads;
  const auto row_of = [&](int slice, int group, int i) {
    return ((slice * G::kGroups + group) * 4 + i) * G::kSliceThreads + thread;
  };
#pragma unroll
  for (int group = 0; group < G::kGroups; ++group) {
    const Group z = group_of<G>(sums, group);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rows[row_of(place.slice, group, i)] = {z.value[i][0], z.value[i][1], z.value[i][2],
                                             z.value[i][3]};
    }
  }
  __syncthreads();
  Group z;
  if (place.slice >= G::kGroups) return z;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float4 v[kSlices];
#pragma unroll
    for (int s = 0; s < kSlices; ++s) v[s] = rows[row_of(s, place.slice, i)];
#pragma unroll
    for (int half = kSlices / 2; half > 0; half /= 2) {
#pragma unroll
      for (int s = 0; s < half; ++s) {
        v[s].x += v[s + half].x, v[s].y += v[s + half].y;
        v[s].z += v[s + half].z, v[s].w += v[s + half].w;
      }
    }
    z.value[i][0] = v[0].x, z.value[i][1] = v[0].y, z.value[i][2] = v[0].z, z.value[i][3] = v[0].w;
  }
  return z;
}

}  // namespace fusedops::simt
