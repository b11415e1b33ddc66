// How a reduction runs: collapse the dimensions, pick the kernel, cut the work. Host only: no
// torch, no CUDA; tests/reduce/test_reduce_plan.py reads it through fusedops._C.reduce_plan.
#pragma once

#include <cstdint>
#include <vector>

namespace fusedops {

struct ReduceDim {
  int64_t size;
  int64_t stride;   // elements
  int64_t out = 0;  // kept: stride in the output. Reduced: step of the logical index, 0: not asked
  bool reduced = false;
};

struct ReduceProblem {
  std::vector<ReduceDim> dims;  // in any order
  int element_bytes = 2;
  int64_t alignment = 0;  // of the first element, in bytes modulo 16

  // Appends a dimension; the innermost comes first. The result is contiguous; `indexed` asks for
  // the logical index of the reduced elements.
  void add_outer(int64_t size, int64_t stride, bool reduced, bool indexed) {
    int64_t& step = reduced ? index_step : out_step;
    dims.push_back({size, stride, reduced && !indexed ? 0 : step, reduced});
    step *= size;
  }

 private:
  int64_t out_step = 1, index_step = 1;
};

enum class ReduceKernel : int8_t {
  kShortRows,       // a few lanes per row, one vector each
  kPackedRows,      // dense rows of 4 or 8 bytes
  kStagedRows,      // dense rows that no vector divides, through shared memory
  kLongRows,        // a few lanes, a warp, a block, or several blocks per row
  kStridedRows,     // the same, element by element
  kFewRows,         // a few rows of many vectors
  kColumns,         // vectors along a kept dimension
  kScalarColumns,   // the same, element by element
  kFewShiftedRows,  // kFewRows of any alignment
  kShiftedColumns,  // kColumns of any alignment
  kPackedColumns,   // dense rows of few columns, several in a vector
  kStagedColumns,   // small dense batch entries, through shared memory
  kDenseColumns,    // dense rows, a whole number of them between a thread's vectors
  kSingles,         // one element an output
};

// A dimension of the outer loop: kept, or reduced by the second pass.
struct ReduceBatch {
  int64_t size, stride;
  int64_t slot;   // stride in what pass 1 writes: [parts, outputs]
  int64_t index;  // step of the logical index
};

inline constexpr int kMaxReduceBatch = 6;
inline constexpr int kReduceThreads = 256;
inline constexpr int kMostReduceThreads = 1024;
inline constexpr int kReduceUnroll = 4;            // vectors a thread has in flight
inline constexpr int kReduceSingles = 8;           // elements of a thread: kSingles
inline constexpr int kReduceTileBytes = 32 << 10;  // kStagedRows
inline constexpr int kMostDenseThreads = 512;      // kDenseColumns
inline constexpr int kDenseSlots = 2048;           // and accumulators in shared memory

// Pass 1 reduces one dimension, `reduced`, for every batch entry (and every column); what it leaves
// are `parts` partial results per output, in a fixed order, for pass 2. parts == 1: no pass 2. The
// parts of an output are numbered by batch entry, slice and row of a fold, the last one fastest.
struct ReducePlan {
  ReduceKernel kernel = ReduceKernel::kLongRows;
  bool copy = false;  // too many dimensions: make it contiguous, kept dimensions first, and replan
  int64_t reduced = 1, reduced_stride = 1, index_step = 0;
  int64_t cols = 1, col_stride = 1, col_out = 1;  // kColumns and kScalarColumns
  int64_t fold = 1;  // rows laid side by side to fill vectors; cols counts one, width all of them
  int num_batch = 0;
  ReduceBatch batch[kMaxReduceBatch] = {};
  int64_t batches = 1;  // product of the batch sizes
  int64_t outputs = 1;
  int64_t splits = 1, chunk = 1;  // slices of the reduced dimension, and their length
  int64_t parts = 1;
  int threads_x = 32, threads_y = 1, threads_b = 1;  // along the row or columns; rows; batches
  int per_lane = 1;       // kShortRows: vectors of a row that a lane reads: 1, 2 or 4
  int64_t tile_rows = 0;  // kStagedRows: rows of a block; kStagedColumns: batch entries
  int active = 0;         // kPackedColumns, kDenseColumns: threads of threads_x that read
  int64_t span = 1;       // elements from the first to behind the last one in memory
  int64_t blocks = 1;

  constexpr int64_t width() const { return cols * fold; }
};

ReducePlan plan_reduce(const ReduceProblem& problem, int sm_count);

const char* reduce_kernel_name(ReduceKernel kernel);

}  // namespace fusedops
