// Which threads hold a row, and how many blocks walk over the rows. Host code.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "csrc/common/device/pdl.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/rows/team/row_layout.h"

namespace fusedops {

// What a kernel of row_team.cuh asks for.
struct RowProblem {
  int64_t rows, n;
  int vec;            // elements of a chunk
  int words;          // 16-byte words that a chunk takes in shared memory, over all streams
  int max_chunks;     // that a thread of the kernel can hold
  int compute_bytes;  // of the compute type
  // Rows after which a block makes place for the next: blocks that come and go read while others
  // write, those that stay fall into step. 0: it stays, as what it loads or sums once asks for.
  int rows_per_team;
  // One thread asks for a row by bulk copies where teams have several: fewer instructions, which
  // pays where those are what limits the kernel.
  bool bulk;
  int sm_threads = 0;   // that a multiprocessor takes, 0: as many as fit
  bool whole = false;   // blocks that hold the whole chunks of a row, no others
  bool filled = false;  // a thread has max_chunks chunks, some of which no row has
};

struct RowPlan {
  bool held = false;  // false: no team can hold a row of this length
  RowLayout layout{};
  int threads = 0;
  int64_t shared_bytes = 0;
  int64_t blocks = 0;
  bool stays = false;  // blocks walk over rows until there are none
};

// The most chunks of `vec` elements that a row of n touches.
int64_t row_chunks(int64_t n, int vec);

// Team and shared memory; blocks are still open. `cluster_limit`: 1 where the GPU has no clusters.
RowPlan plan_team(const RowProblem& problem, int sm_count, int64_t shared_limit, int cluster_limit);

// Blocks that the GPU holds at a time for this kernel; allows the kernel its shared memory.
int resident_blocks(const void* kernel, const RowPlan& plan, const LaunchScope& scope);

// As many blocks as are resident, fewer where the rows are few.
void plan_blocks(RowPlan& plan, const RowProblem& problem, int resident);

RowPlan plan_rows(const void* kernel, const RowProblem& problem, const LaunchScope& scope);

// For rows that go straight to registers: a team for every row.
struct DirectPlan {
  DirectKind kind = DirectKind::kNone;
  RowPlan rows;
};
using DirectKinds =
    Choices<DirectKind::kFewLanes, DirectKind::kFewBlocks, DirectKind::kFewClusters,
            DirectKind::kLanes, DirectKind::kBlock, DirectKind::kWide, DirectKind::kLong>;

// What the kernels of blocks are compiled for. chunks: of a thread, in registers; ends: threads
// hold whole chunks, as in row_ends.cuh.
struct DirectBlocks {
  int chunks, long_chunks = 1, long_threads = kRowThreads;
  bool ends = false;
};

// Chunks of rows for each multiprocessor up to which rows leave the GPU partly idle.
inline constexpr int64_t kFewChunks = 1024;

DirectPlan plan_direct(int64_t rows, int64_t n, int vec, const DirectBlocks& blocks,
                       const LaunchScope& scope);

// One block per row, for kernels that read a row in a loop.
int64_t blocks_of_long_rows(int64_t rows, const LaunchScope& scope);

// Launches on a plan; blocks of a cluster start together.
// NOTE: blocks that stay wait for an empty GPU. Beside a predecessor's blocks, or its division of
// an SM's memory, some SMs take more of them than others, for all rows: 290 us for 275 (gradient of
// rms_norm with a residual, 1024), 300 for 218 (of layer_norm, 16384, by clusters).
template <class... Params, class... Args>
void launch_rows(void (*kernel)(Params...), const RowPlan& plan, const LaunchScope& scope,
                 Args&&... args) {
  launch_cluster_kernel(
      kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(plan.threads)),
      static_cast<unsigned>(plan.layout.cluster), static_cast<size_t>(plan.shared_bytes),
      scope.stream(), scope.context().overlap && !plan.stays, std::forward<Args>(args)...);
}

// A plain launch that may start while its predecessor drains.
template <class... Params, class... Args>
void launch_plain(void (*kernel)(Params...), dim3 grid, dim3 block, const LaunchScope& scope,
                  Args&&... args) {
  launch_kernel(kernel, grid, block, 0, scope.stream(), scope.context().overlap,
                std::forward<Args>(args)...);
}

// fn(Tag<kRagged>): whether rows of n elements begin or end inside a chunk. Only halves have
// kernels of their own for rows that do not.
template <class T, class Fn>
void dispatch_ragged(int64_t n, Fn&& fn) {
  if constexpr (sizeof(T) == 2) {
    dispatch_bool(n % kChunkOf<T> != 0, fn);
  } else {
    fn(Tag<true>{});
  }
}

// ---- inputs ----

// A tensor as rows of n contiguous elements; `tensor` keeps the memory alive.
struct RowInput {
  Tensor tensor;
  int64_t stride;  // elements between rows

  template <class T>
  const T* as() const {
    return static_cast<const T*>(tensor.const_data_ptr());
  }
};

// Rows along the last `inner_dims` dims. Row r must begin at the same place inside a chunk of `vec`
// elements as it does in a contiguous tensor, behind the row before; what lies otherwise is copied.
RowInput row_input(const Tensor& x, int64_t n, int64_t inner_dims, int vec);

}  // namespace fusedops
