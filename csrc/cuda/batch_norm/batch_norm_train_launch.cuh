// Which blocks share channels in batch norm as one kernel, and its launches.
#pragma once

#include <algorithm>
#include <optional>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cuda/batch_norm/batch_norm_train.cuh"

namespace fusedops {

inline constexpr int kTrainCluster = 8;  // blocks, what every GPU of 9.0 and later grants

// sharing, and grid and slots of a TrainProblem.
constexpr int64_t kTrainChunks = 30;                // of 16 bytes in a row
constexpr int64_t kTrainBytes = int64_t{32} << 20;  // of a tensor

struct TrainPlan {
  Sharing sharing;
  WalkGrid grid;
  int slots;
};

inline int train_slots(int shared_memory_per_block, int inputs) {
  const int room = shared_memory_per_block - static_cast<int>(sizeof(ResidentShared));
  return std::max(0, room / (inputs * kResidentThreads * 16));
}

inline WalkGrid train_grid(int64_t rows, int64_t chunks, int threads_x, int64_t row_blocks) {
  WalkGrid grid{};
  grid.threads_x = threads_x;
  grid.threads_y = kResidentThreads / threads_x;
  grid.col_blocks = ceil_div(chunks, int64_t{threads_x});
  grid.rows_per_block = ceil_div(rows, row_blocks);
  grid.row_blocks = ceil_div(rows, grid.rows_per_block);
  return grid;
}

// One block on each multiprocessor; chunks / 32 of them at least.
inline TrainPlan grid_plan(int64_t rows, int64_t chunks, int sm_count, int slots) {
  const int64_t columns = ceil_div(chunks, int64_t{32});
  const int threads_x = static_cast<int>(ceil_div(chunks, columns));
  const int64_t most = sm_count / columns;
  const int64_t some = ceil_div(rows, int64_t{kResidentThreads / threads_x});
  return {Sharing::kGrid, train_grid(rows, chunks, threads_x, std::min(most, some)), slots};
}

// None: where the passes one by one are no worse.
// rows, channels: of elements of 2 or 4 bytes, `vec` of them in 16 bytes.
inline std::optional<TrainPlan> train_plan(int64_t rows, int64_t channels, int vec, int sm_count,
                                           int slots) {
  const int64_t chunks = ceil_div(channels, int64_t{vec});
  if (rows < 64 || channels == 0 || slots < 2 || chunks > int64_t{32} * sm_count)
    return std::nullopt;
  if (ceil_div(rows, int64_t{kResidentThreads / 32}) >= (int64_t{1} << 31)) return std::nullopt;
  // NOTE: measured (an H200 at 817c5e9 against an H100 before it, as shares of eager): 1.0 to 1.1 x
  // the speed of the passes up to here, down to 0.37 x for more bytes and more channels.
  if (chunks >= kTrainChunks || rows * chunks * 16 > kTrainBytes) return std::nullopt;
  return grid_plan(rows, chunks, sm_count, slots);
}

template <auto kKernel>
cudaError_t launch_train(const TrainProblem& problem, Sharing sharing, int inputs,
                         cudaStream_t stream, bool overlap) {
  if (const cudaError_t status = allow_any_shared_memory<kKernel>()) return status;
  const WalkGrid& grid = problem.pass.grid;
  const dim3 blocks(static_cast<unsigned>(grid.row_blocks * grid.col_blocks));
  const size_t bytes = size_t{16} * kResidentThreads * inputs * problem.slots;
  if (sharing == Sharing::kCluster) {
    return launch_cluster_kernel(kKernel, blocks, dim3(kResidentThreads),
                                 static_cast<unsigned>(grid.row_blocks), bytes, stream, overlap,
                                 problem);
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(kResidentThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kKernel, problem);
}

template <class T, bool kAdded>
cudaError_t launch_train_forward(const TrainProblem& p, Sharing sharing, cudaStream_t stream,
                                 bool overlap) {
  if (sharing == Sharing::kCluster) {
    return launch_train<&batch_norm_train_kernel<T, kAdded, Sharing::kCluster>>(p, sharing, 1,
                                                                                stream, overlap);
  }
  return launch_train<&batch_norm_train_kernel<T, kAdded, Sharing::kGrid>>(p, sharing, 1, stream,
                                                                           overlap);
}

template <class T, bool kAdded>
cudaError_t launch_train_backward(const TrainProblem& p, Sharing sharing, cudaStream_t stream,
                                  bool overlap) {
  constexpr int kInputs = kAdded ? 3 : 2;
  if (sharing == Sharing::kCluster) {
    return launch_train<&batch_norm_train_backward_kernel<T, kAdded, Sharing::kCluster>>(
        p, sharing, kInputs, stream, overlap);
  }
  return launch_train<&batch_norm_train_backward_kernel<T, kAdded, Sharing::kGrid>>(
      p, sharing, kInputs, stream, overlap);
}

}  // namespace fusedops
