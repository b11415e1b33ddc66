// Where batch norm runs as one kernel, and its launches.
#pragma once

#include <algorithm>
#include <optional>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cuda/batch_norm/batch_norm_train.cuh"

namespace fusedops {

inline constexpr int64_t kTrainChunks = 30;                // of 16 bytes in a row
inline constexpr int64_t kTrainBytes = int64_t{32} << 20;  // of a tensor
static_assert(kTrainChunks <= 32);                         // of a block's threads in a row

// grid and slots of a TrainProblem.
struct TrainPlan {
  WalkGrid grid;
  int slots;
};

inline int train_slots(int shared_memory_per_block, int inputs) {
  const int room = shared_memory_per_block - static_cast<int>(sizeof(ResidentShared));
  return std::max(0, room / (inputs * kResidentThreads * 16));
}

// One block on each multiprocessor, with all channels of its rows.
inline WalkGrid train_grid(int64_t rows, int64_t chunks, int sm_count) {
  WalkGrid grid{};
  grid.threads_x = static_cast<int>(chunks);
  grid.threads_y = kResidentThreads / grid.threads_x;
  grid.col_blocks = 1;
  const int64_t some = ceil_div(rows, int64_t{grid.threads_y});
  grid.rows_per_block = ceil_div(rows, std::min(int64_t{sm_count}, some));
  grid.row_blocks = ceil_div(rows, grid.rows_per_block);
  return grid;
}

// None: where the passes one by one are no worse.
// rows, channels: of elements of 2 or 4 bytes, `vec` of them in 16 bytes.
inline std::optional<TrainPlan> train_plan(int64_t rows, int64_t channels, int vec, int sm_count,
                                           int slots) {
  const int64_t chunks = ceil_div(channels, int64_t{vec});
  if (rows < 64 || channels == 0 || slots < 2) return std::nullopt;
  // NOTE: measured (an H200 at 817c5e9 against an H100 before it, as shares of eager): 1.0 to 1.1 x
  // the speed of the passes up to here, down to 0.37 x for more bytes and more channels.
  if (chunks >= kTrainChunks || rows * chunks * 16 > kTrainBytes) return std::nullopt;
  return TrainPlan{train_grid(rows, chunks, sm_count), slots};
}

template <auto kKernel>
cudaError_t launch_train(const TrainProblem& problem, int inputs, cudaStream_t stream) {
  if (const cudaError_t status = allow_any_shared_memory<kKernel>()) return status;
  const WalkGrid& grid = problem.pass.grid;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.row_blocks * grid.col_blocks));
  config.blockDim = dim3(kResidentThreads);
  config.dynamicSmemBytes = size_t{16} * kResidentThreads * inputs * problem.slots;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kKernel, problem);
}

template <class T, bool kAdded>
cudaError_t launch_train_forward(const TrainProblem& p, cudaStream_t stream) {
  return launch_train<&batch_norm_train_kernel<T, kAdded>>(p, 1, stream);
}

template <class T, bool kAdded>
cudaError_t launch_train_backward(const TrainProblem& p, cudaStream_t stream) {
  return launch_train<&batch_norm_train_backward_kernel<T, kAdded>>(p, kAdded ? 3 : 2, stream);
}

}  // namespace fusedops
