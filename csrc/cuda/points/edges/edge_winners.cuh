// Gradients of maxima as rows of edges: row (i, k) has those of the channels that neighbour k won.
#pragma once

#include "csrc/common/device/vec.cuh"
#include "csrc/common/int_math.h"
#include "csrc/cuda/points/edges/edge_problem.h"

namespace fusedops {

inline constexpr int kWinnerThreads = 256;
inline constexpr int kWinnerChannels = 8;  // of a thread

// rows: [groups][k][width]; width is a multiple of kWinnerChannels, channels beyond `channels` are 0.
template <class T>
__global__ void edge_winners_kernel(const float* best_grad, const int16_t* which, int64_t groups,
                                    int k, int channels, int width, T* rows) {
  const int pieces = width / kWinnerChannels;
  const int64_t i = int64_t{blockIdx.x} * kWinnerThreads + threadIdx.x;
  if (i >= groups * pieces) return;
  const int64_t group = i / pieces;
  const int first = static_cast<int>(i % pieces) * kWinnerChannels;
  T value[kWinnerChannels];
  int won[kWinnerChannels];
#pragma unroll
  for (int c = 0; c < kWinnerChannels; ++c) {
    const bool is_channel = first + c < channels;
    const int64_t at = group * channels + first + c;
    value[c] = from_compute<T>(is_channel ? __ldg(best_grad + at) : 0.f);
    won[c] = is_channel ? __ldg(which + at) : -1;
  }
  using Row = Vec<T, kWinnerChannels>;
  for (int at = 0; at < k; ++at) {
    Row row;
#pragma unroll
    for (int c = 0; c < kWinnerChannels; ++c) {
      row.value[c] = won[c] == at ? value[c] : from_compute<T>(0.f);
    }
    *reinterpret_cast<Row*>(rows + (group * k + at) * width + first) = row;
  }
}

}  // namespace fusedops
