#include "csrc/cuda/reduce/reduce_plan.h"

#include <algorithm>
#include <numeric>

#include "csrc/common/int_math.h"

namespace fusedops {
namespace {

constexpr int kVectorBytes = 16;
constexpr int64_t kBlockBytes = 128 << 10;      // what a block of a large problem reads
constexpr int64_t kLeastChunkBytes = 16 << 10;  // less is not worth a partial result
constexpr int64_t kMostRowBlocks = 8192;        // and partial results, for pass 2
constexpr int64_t kMostColumnBlocks = 4096;
constexpr int kBlocksPerSm = 8;
constexpr int64_t kSingleBlockBytes = 64 << 10;  // one block beats two launches
constexpr int64_t kStagedBytes = 2048;           // longest row that goes through shared memory
constexpr int64_t kLeastStagedRows = 32;
constexpr int kStagedBlocksPerSm = 4;  // rows in fewer tiles would leave most of the GPU idle
constexpr int64_t kLeastFewRowsColumns = 1024;
constexpr int64_t kMostPackedColumns = 64;
constexpr int64_t kMostFoldedColumns = 256;  // wider rows fill vectors without a fold
constexpr int64_t kLeastRowsPerFold = 64;    // of such a row: fewer are less than its partial sums
constexpr int64_t kMostFewRows = 64;         // of a thread, where the columns fill the GPU:
constexpr int64_t kFullThreads = 448;        // threads of an SM that have columns of their own
constexpr int64_t kSmallFullThreads = 256;   // the same where a thread has 2 * kReduceUnroll rows
constexpr int64_t kShiftedFullThreads = 1024;  // the same where vectors lie anywhere
constexpr int64_t kShiftedFewThreads = 256;    // and a thread has kMostShiftedRows
constexpr int64_t kMostShiftedRows = 8 * kReduceUnroll;
// What latency bounds goes element by element: elements of an SM, and rows.
constexpr int64_t kTinyElements = 3072, kMostTinyRows = 128;
constexpr int64_t kManyThreads = 4096;  // of an SM, half of which are as good
constexpr int64_t kRowsOfFullThreads = 4 * kReduceUnroll;
constexpr int64_t kPackedBlocksPerSm = 2;  // more slices than these cost more than they hide
constexpr int64_t kStagedBatchBytes = 16
                                      << 10;  // largest batch entry that goes through shared memory
constexpr int64_t kLeastDenseThreads = 192;
constexpr int64_t kLeastFoldedRows = 64;  // rows of a fold that takes more rows than it must
constexpr int kVectorsPerThread = 32;     // of a long row, where there are many
constexpr int64_t kLongestChain = 4096;   // sums in a row, for accuracy
constexpr int64_t kLongestChunk = int64_t{1} << 30;  // positions in a slice are 32-bit

int64_t power_of_two(int64_t least) {
  int64_t value = 1;
  while (value < least) value *= 2;
  return value;
}

// Sorted by stride, outermost first, and merged where neighbours are one dimension in memory.
std::vector<ReduceDim> collapse(const std::vector<ReduceDim>& dims) {
  std::vector<ReduceDim> sorted;
  for (const ReduceDim& dim : dims) {
    if (dim.size != 1) sorted.push_back(dim);
  }
  // NOTE: expanded dimensions (stride 0) go outside, where they cost no vector.
  std::stable_sort(sorted.begin(), sorted.end(), [](const ReduceDim& a, const ReduceDim& b) {
    if (a.stride == 0 || b.stride == 0) return a.stride == 0 && b.stride != 0;
    return a.stride > b.stride;
  });
  std::vector<ReduceDim> merged;
  for (const ReduceDim& dim : sorted) {
    if (!merged.empty()) {
      ReduceDim& last = merged.back();
      if (last.reduced == dim.reduced && last.stride == dim.stride * dim.size &&
          last.out == dim.out * dim.size) {
        last = {last.size * dim.size, dim.stride, dim.out, dim.reduced};
        continue;
      }
    }
    merged.push_back(dim);
  }
  return merged;
}

class Planner {
 public:
  Planner(const ReduceProblem& problem, int sm_count)
      : problem_(problem),
        dims_(collapse(problem.dims)),
        sm_count_(sm_count),
        vec_(kVectorBytes / problem.element_bytes) {}

  ReducePlan plan() {
    for (const ReduceDim& dim : dims_) {
      plan_.outputs *= dim.reduced ? 1 : dim.size;
      plan_.span += (dim.size - 1) * dim.stride;
    }
    const bool columns = !dims_.empty() && !dims_.back().reduced;
    if (columns) {
      take_columns();
    } else if (!dims_.empty()) {
      take_reduced(dims_.size() - 1);
    }
    if (dims_.size() > kMaxReduceBatch) {
      plan_.copy = true;
      return plan_;
    }
    take_batch();
    if (columns) {
      plan_columns();
    } else {
      plan_rows();
    }
    for (int i = 0; i < plan_.num_batch; ++i) {
      if (dims_[i].reduced) plan_.batch[i].slot *= plan_.splits * plan_.fold;
    }
    plan_.parts *= plan_.splits * plan_.fold;
    return plan_;
  }

 private:
  int64_t bytes(int64_t elements) const { return elements * problem_.element_bytes; }
  bool whole_vectors(int64_t elements) const { return elements % vec_ == 0; }

  void take_reduced(size_t position) {
    const ReduceDim dim = dims_[position];
    dims_.erase(dims_.begin() + position);
    plan_.reduced = dim.size;
    plan_.reduced_stride = dim.stride;
    plan_.index_step = dim.out;
  }

  // The innermost dimension is kept: the largest reduced one is walked by pass 1.
  void take_columns() {
    const ReduceDim inner = dims_.back();
    dims_.pop_back();
    plan_.cols = inner.size;
    plan_.col_stride = inner.stride;
    plan_.col_out = inner.out;
    size_t largest = dims_.size();
    for (size_t i = 0; i < dims_.size(); ++i) {
      if (!dims_[i].reduced) continue;
      if (largest == dims_.size() || dims_[i].size >= dims_[largest].size) largest = i;
    }
    plan_.reduced_stride = 0;
    if (largest < dims_.size()) take_reduced(largest);
  }

  void take_batch() {
    for (size_t i = dims_.size(); i-- > 0;) {
      const ReduceDim& dim = dims_[i];
      ReduceBatch& batch = plan_.batch[i];
      plan_.batches *= dim.size;
      if (dim.reduced) {
        batch = {dim.size, dim.stride, plan_.parts * plan_.outputs, dim.out};
        plan_.parts *= dim.size;
      } else {
        batch = {dim.size, dim.stride, dim.out, 0};
      }
    }
    plan_.num_batch = static_cast<int>(dims_.size());
  }

  bool aligned_batches() const {
    if (problem_.alignment != 0) return false;
    return std::all_of(dims_.begin(), dims_.end(),
                       [this](const ReduceDim& d) { return whole_vectors(d.stride); });
  }

  // Whether the batch entries lie behind one another.
  bool dense_batches() const {
    int64_t entry = plan_.reduced;
    for (size_t i = dims_.size(); i-- > 0; entry *= dims_[i].size) {
      if (dims_[i].stride != entry) return false;
    }
    return true;
  }

  int64_t total_bytes() const { return bytes(plan_.batches * plan_.reduced * plan_.cols); }

  // Blocks that a problem of this size wants.
  int64_t wanted_blocks() const {
    const int64_t total = total_bytes();
    if (total <= kSingleBlockBytes) return 1;
    const int64_t resident = int64_t{sm_count_} * kBlocksPerSm;
    return std::clamp(total / kBlockBytes, std::min(resident, total / kLeastChunkBytes),
                      plan_.cols > 1 ? kMostColumnBlocks : kMostRowBlocks);
  }

  void split(int64_t blocks, int64_t most) {
    // NOTE: two waves balance well enough to do without partial results.
    const bool enough = blocks >= int64_t{2} * sm_count_ * kBlocksPerSm;
    const int64_t splits =
        enough ? 1 : std::clamp<int64_t>(ceil_div(wanted_blocks(), blocks), 1, most);
    plan_.chunk = std::min(ceil_div(plan_.reduced, splits), kLongestChunk);
  }

  // ---- the innermost dimension is reduced ----

  void plan_rows() {
    ReducePlan& p = plan_;
    const int64_t row_bytes = bytes(p.reduced);
    const bool contiguous = p.reduced_stride == 1 || p.reduced == 1;
    const bool dense = dense_batches(), in_order = dense && p.num_batch <= 1;
    p.chunk = p.reduced;
    if (contiguous && aligned_batches() && whole_vectors(p.reduced) &&
        row_bytes <= 32 * kVectorBytes) {
      p.kernel = ReduceKernel::kShortRows;
      const int64_t vectors = p.reduced / vec_;
      p.per_lane = vectors <= 2 ? static_cast<int>(vectors) : kReduceUnroll;
      p.threads_x = static_cast<int>(power_of_two(ceil_div(vectors, p.per_lane)));
      p.threads_y = kReduceThreads / p.threads_x;
      p.blocks = ceil_div(p.batches, int64_t{p.threads_y} * (kReduceUnroll / p.per_lane));
    } else if (contiguous && in_order && problem_.alignment == 0 && p.reduced > 1 && p.parts == 1 &&
               (row_bytes == 4 || row_bytes == 8)) {
      p.kernel = ReduceKernel::kPackedRows;
      p.threads_x = kReduceThreads;
      p.threads_y = 1;
      p.blocks =
          ceil_div(p.batches * row_bytes, int64_t{kVectorBytes} * kReduceUnroll * kReduceThreads);
    } else if (contiguous && dense && problem_.alignment == 0 && !whole_vectors(p.reduced) &&
               row_bytes <= kStagedBytes && p.batches >= kLeastStagedRows) {
      plan_staged(row_bytes);
    } else {
      p.kernel = contiguous ? ReduceKernel::kLongRows : ReduceKernel::kStridedRows;
      plan_long_rows(contiguous ? vec_ : 1);
    }
  }

  void plan_staged(int64_t row_bytes) {
    ReducePlan& p = plan_;
    p.kernel = ReduceKernel::kStagedRows;
    // About 64 bytes a lane
    // NOTE: 16 / element_bytes rows of any length are whole vectors, and threads_y is as many.
    const int64_t most = int64_t{kReduceThreads} * problem_.element_bytes / kVectorBytes;
    p.threads_x =
        static_cast<int>(std::min({power_of_two(ceil_div(row_bytes, 64)), most, int64_t{32}}));
    p.threads_y = kReduceThreads / p.threads_x;
    const int64_t fits = kReduceTileBytes / (p.threads_y * row_bytes) * p.threads_y;
    const int64_t least =
        std::max<int64_t>(vec_, 32 / p.threads_x);  // whole vectors, a warp's rows
    const int64_t spread = ceil_div(p.batches, int64_t{sm_count_} * kStagedBlocksPerSm);
    p.tile_rows = std::min(fits, round_up(spread, least));
    p.blocks = ceil_div(p.batches, p.tile_rows);
  }

  void plan_long_rows(int vec) {
    ReducePlan& p = plan_;
    const int64_t vectors = ceil_div(p.reduced, vec);
    // NOTE: a vector's worth of lanes at least, for the elements beside the aligned vectors.
    p.threads_x = static_cast<int>(std::clamp<int64_t>(power_of_two(vectors), vec, 32));
    const int64_t few_rows = int64_t{sm_count_} * kBlocksPerSm;
    while (p.threads_x < kReduceThreads && p.threads_x * kVectorsPerThread < vectors) {
      p.threads_x *= 2;
    }
    while (p.batches * p.threads_x < few_rows * kReduceThreads &&
           p.threads_x < kMostReduceThreads && p.threads_x * 2 <= vectors) {
      p.threads_x *= 2;
    }
    p.threads_y = std::max(1, kReduceThreads / p.threads_x);
    const int64_t row_bytes = vectors * kVectorBytes;
    if (p.threads_x >= kReduceThreads) {
      split(p.batches, std::max<int64_t>(1, row_bytes / kLeastChunkBytes));
      p.chunk = round_up(p.chunk, vec);
      p.splits = ceil_div(p.reduced, p.chunk);
      if (p.splits > 1) p.threads_x = kReduceThreads;
    }
    p.blocks = ceil_div(p.batches * p.splits, p.threads_y);
  }

  // ---- the innermost dimension is kept ----

  bool aligned_outputs() const {
    return std::all_of(dims_.begin(), dims_.end(),
                       [this](const ReduceDim& d) { return whole_vectors(d.out); });
  }

  // Shifted columns begin where a vector of outputs does, up to a vector before the first.
  void plan_few_rows(bool shifted) {
    ReducePlan& p = plan_;
    p.kernel = shifted ? ReduceKernel::kFewShiftedRows : ReduceKernel::kFewRows;
    p.chunk = p.reduced;
    p.threads_x = kReduceThreads;
    const int64_t vectors = shifted ? ceil_div(p.cols + vec_ - 1, vec_) : p.cols / vec_;
    // Few threads of a row's last block should idle
    const auto idle = [&](int64_t threads) { return round_up(vectors, threads) - vectors; };
    const bool ragged = shifted && 8 * idle(kReduceThreads) > vectors;
    for (int x = kReduceThreads - 32; ragged && x >= 32; x -= 32) {
      if (idle(x) < idle(p.threads_x)) p.threads_x = x;
    }
    const auto blocks = [&] {
      return shifted ? ceil_div(vectors, p.threads_x) * p.batches
                     : ceil_div(vectors * p.batches, p.threads_x);
    };
    while (p.threads_x > 32 && blocks() < sm_count_) p.threads_x /= 2;
    p.blocks = blocks();
  }

  // One thread takes all rows of its columns.
  bool wants_few_rows(bool vectors_fit, bool shifted) const {
    const ReducePlan& p = plan_;
    const int64_t threads = p.batches * (p.cols / vec_);
    const int64_t fill = shifted ? kShiftedFullThreads : kFullThreads;
    const bool full = threads >= sm_count_ * fill && p.reduced <= kMostFewRows;
    const bool wide =
        p.cols >= kLeastFewRowsColumns || (vectors_fit && threads >= sm_count_ * kSmallFullThreads);
    const bool few = p.reduced <= 2 * kReduceUnroll && wide;
    const bool some = p.reduced <= kMostShiftedRows && threads >= sm_count_ * kShiftedFewThreads;
    if (vectors_fit) return (few || full) && aligned_outputs();
    return shifted && (few || ((full || some) && p.cols >= 8 * vec_));
  }

  // Dense batch entries (reduced, cols), as many as fit shared memory to a block.
  bool plan_staged_columns() {
    ReducePlan& p = plan_;
    const int64_t entry = p.reduced * p.cols;
    const bool dense = p.num_batch == 1 && p.batch[0].stride == entry && p.parts == 1;
    if (!dense || p.batches < kLeastStagedRows || bytes(entry) > kStagedBatchBytes) return false;
    p.kernel = ReduceKernel::kStagedColumns;
    p.chunk = p.reduced;
    const int64_t spread = ceil_div(p.batches, int64_t{sm_count_} * kBlocksPerSm);
    p.tile_rows = std::clamp<int64_t>(spread, 1, kReduceTileBytes / bytes(entry));
    p.blocks = ceil_div(p.batches, p.tile_rows);
    p.threads_y = 1;
    while (p.threads_y < 32 && p.tile_rows * p.cols * p.threads_y * 2 <= kReduceThreads &&
           p.threads_y * 2 * kReduceUnroll <= p.reduced) {
      p.threads_y *= 2;
    }
    p.threads_x = kReduceThreads / p.threads_y;
    return true;
  }

  // Threads of a block that read, whole periods of them: few of the last warp's should idle.
  int64_t choose_active(int64_t period, int64_t per_row) const {
    int64_t best = 0;
    const auto filled = [](int64_t active) { return active * 1024 / round_up(active, 32); };
    for (int64_t active = period; active <= kMostDenseThreads && active * per_row <= kDenseSlots;
         active += period) {
      if (best == 0 || best < kLeastDenseThreads || filled(active) > filled(best)) best = active;
      if (best >= kLeastDenseThreads && 10 * filled(best) >= 9 * 1024) break;
    }
    return best;
  }

  // Dense rows that no vector divides, where their columns repeat within a block's vectors.
  bool plan_dense_columns() {
    ReducePlan& p = plan_;
    const int64_t per_row = std::gcd(p.cols, int64_t{vec_});
    const int64_t active = choose_active(p.cols / per_row, per_row);
    const int64_t vectors = p.reduced * p.cols / vec_;
    if (active == 0 || vectors < 2 * active) return false;
    p.kernel = ReduceKernel::kDenseColumns;
    p.active = static_cast<int>(active);
    p.threads_x = static_cast<int>(round_up(active, 32));
    const int64_t step = active * vec_ / p.cols;  // rows from a thread's vector to its next one
    split(p.batches, std::max<int64_t>(1, vectors / (2 * kReduceUnroll * active)));
    p.chunk = std::min(p.chunk, step * kLongestChain);
    if (p.chunk < p.reduced) p.chunk = round_up(p.chunk, step);
    p.splits = ceil_div(p.reduced, p.chunk);
    p.blocks = p.batches * p.splits;
    return true;
  }

  // Dense rows of few columns. Where a vector is whole rows, columns that are folded do as well.
  bool plan_packed_columns(bool aligned) {
    ReducePlan& p = plan_;
    if (p.cols > kMostPackedColumns || (aligned && p.num_batch == 0 && vec_ % p.cols == 0)) {
      return false;
    }
    const int64_t period = p.cols / std::gcd(p.cols, int64_t{vec_});
    const int64_t vectors = ceil_div(p.reduced * p.cols, vec_);
    // NOTE: four periods at least: packed_columns_kernel keeps one of each entry in shared memory.
    int64_t threads = std::max<int64_t>(32, power_of_two(4 * period));
    if (threads > kReduceThreads || vectors < threads) return false;
    // NOTE: one block has nothing beside it that hides a thread's chain of sums.
    const int64_t each = total_bytes() <= kSingleBlockBytes ? 1 : kReduceUnroll;
    while (threads < kReduceThreads && vectors >= 2 * each * threads) threads *= 2;
    p.kernel = ReduceKernel::kPackedColumns;
    p.threads_x = static_cast<int>(threads);
    p.active = static_cast<int>(threads / period * period);
    p.threads_b =
        static_cast<int>(std::min<int64_t>(kReduceThreads / threads, power_of_two(p.batches)));
    const int64_t step = p.active * vec_ / p.cols;  // rows from a thread's vector to its next one
    const int64_t blocks = ceil_div(p.batches, p.threads_b);
    const int64_t fill = ceil_div(sm_count_ * kPackedBlocksPerSm, blocks);
    const int64_t most = std::max(fill, p.reduced / (kVectorsPerThread * step));
    split(blocks, std::clamp<int64_t>(p.reduced / (2 * kReduceUnroll * step), 1, most));
    p.chunk = std::min(p.chunk, step * kLongestChain);
    if (p.chunk < p.reduced) p.chunk = round_up(p.chunk, step);
    p.splits = ceil_div(p.reduced, p.chunk);
    p.blocks = blocks * p.splits;
    return true;
  }

  // Dense rows side by side: to whole vectors, then until few of a block's threads idle.
  int64_t choose_fold() const {
    const int64_t whole = vec_ / std::gcd(plan_.cols, int64_t{vec_});
    if (plan_.reduced < whole) return 1;
    for (int64_t fold = whole; fold * kLeastFoldedRows <= plan_.reduced; fold += whole) {
      const int64_t vectors = plan_.cols * fold / vec_;
      const int64_t threads = vectors <= 32 ? power_of_two(vectors) : round_up(vectors, 32);
      if (10 * vectors >= 9 * threads) return fold;
      if (vectors > kReduceThreads) break;
    }
    return whole;
  }

  void plan_singles() {
    plan_.kernel = ReduceKernel::kSingles;
    plan_.threads_x = kReduceThreads;
    plan_.blocks = ceil_div(plan_.cols, int64_t{kReduceThreads} * kReduceSingles);
  }

  void plan_columns() {
    ReducePlan& p = plan_;
    const bool unit = p.col_stride == 1, aligned = unit && aligned_batches();
    if (p.reduced == 1 && p.num_batch == 0 && !(aligned && whole_vectors(p.cols))) {
      return plan_singles();
    }
    if (unit && p.reduced_stride == p.cols && !(aligned && whole_vectors(p.cols)) &&
        (plan_staged_columns() || plan_packed_columns(aligned))) {
      return;
    }
    const bool tiny =
        p.reduced <= kMostTinyRows && p.batches * p.reduced * p.cols <= sm_count_ * kTinyElements;
    // NOTE: what is left of a few folds is added row by row.
    // A small problem of whole vectors is not worth a second launch.
    const bool alone = whole_vectors(p.cols) && total_bytes() <= kSingleBlockBytes;
    const bool folds = (p.reduced >= kLeastFoldedRows || !tiny) && !alone;
    p.fold = aligned && p.reduced_stride == p.cols && folds ? choose_fold() : 1;
    const bool wide = p.cols > kMostPackedColumns &&
                      (p.cols >= kMostFoldedColumns || p.reduced < kLeastRowsPerFold * p.fold);
    if (wide) p.fold = 1;
    const bool vectors_fit =
        aligned && whole_vectors(p.width()) && (p.fold > 1 || whole_vectors(p.reduced_stride));
    const bool shifted = !vectors_fit && unit && !tiny && p.cols >= 4 * vec_ && p.reduced > 1;
    const bool many_rows = p.reduced > 2 * kReduceUnroll || p.cols < kLeastFewRowsColumns;
    if (shifted && many_rows && p.reduced_stride == p.cols && plan_dense_columns()) return;
    // NOTE: four bytes a lane keep up with memory, without a second load and a shift.
    p.kernel = vectors_fit                             ? ReduceKernel::kColumns
               : shifted && problem_.element_bytes < 4 ? ReduceKernel::kShiftedColumns
                                                       : ReduceKernel::kScalarColumns;
    if (p.fold == 1 && p.parts == 1 && p.col_out == 1 && wants_few_rows(vectors_fit, shifted)) {
      return plan_few_rows(shifted);
    }
    plan_column_blocks();
  }

  // A block holds threads_x vectors of columns, threads_y rows and threads_b batch entries.
  void plan_column_blocks() {
    ReducePlan& p = plan_;
    const int vec = p.kernel == ReduceKernel::kScalarColumns ? 1 : vec_;
    const int64_t rows = p.reduced / p.fold;  // the ragged rest is the last slice's
    const int64_t vectors = ceil_div(p.width(), vec);
    const int64_t rows_wanted = power_of_two(ceil_div(rows, kReduceUnroll) / 2 + 1);
    p.threads_x = static_cast<int>(std::min<int64_t>(power_of_two(vectors), 32));
    p.threads_y = static_cast<int>(
        std::min<int64_t>(kReduceThreads / p.threads_x, std::max<int64_t>(rows_wanted, 1)));
    while (p.threads_x * p.threads_y < kReduceThreads && p.threads_x < vectors) p.threads_x *= 2;
    // Where there are threads enough, each takes more rows: fewer sums to combine
    while (p.threads_y > 1 && rows < int64_t{p.threads_y} * kRowsOfFullThreads &&
           p.batches * vectors * p.threads_y >= int64_t{sm_count_} * kManyThreads) {
      p.threads_y /= 2;
    }
    // A small problem on more SMs: narrower blocks, down to a sector
    while (wanted_blocks() == 1 && p.threads_x > 2 && p.threads_y * kReduceUnroll <= rows &&
           ceil_div(vectors, p.threads_x) * p.batches * 2 <= sm_count_) {
      p.threads_x /= 2;
      p.threads_y *= 2;
    }
    const int rest = kReduceThreads / (p.threads_x * p.threads_y);
    // NOTE: at least a warp, for the shuffles.
    const int64_t warp = ceil_div(32, p.threads_x * p.threads_y);
    p.threads_b =
        static_cast<int>(std::min<int64_t>(rest, std::max(warp, power_of_two(p.batches))));

    const int64_t blocks = ceil_div(vectors, p.threads_x) * ceil_div(p.batches, p.threads_b);
    const int64_t step = int64_t{p.threads_y} * kReduceUnroll;
    split(blocks, std::max<int64_t>(1, rows / (4 * step)));
    // In folded rows from here; no thread adds more than kLongestChain of them
    const int64_t slices = ceil_div(p.reduced, p.chunk);
    p.chunk = std::min(ceil_div(rows, slices), p.threads_y * kLongestChain);
    if (slices > 1) p.chunk = round_up(p.chunk, step);
    p.chunk = std::max<int64_t>(p.chunk, 1) * p.fold;
    p.splits = std::max<int64_t>(ceil_div(rows * p.fold, p.chunk), 1);
    p.blocks = blocks * p.splits;
  }

  const ReduceProblem& problem_;
  std::vector<ReduceDim> dims_;  // what no part of the plan has taken yet
  int sm_count_, vec_;
  ReducePlan plan_;
};

}  // namespace

ReducePlan plan_reduce(const ReduceProblem& problem, int sm_count) {
  return Planner(problem, sm_count).plan();
}

const char* reduce_kernel_name(ReduceKernel kernel) {
  constexpr const char* kNames[] = {
      "short rows",     "packed rows",    "staged rows",    "long rows",        "strided rows",
      "few rows",       "columns",        "scalar columns", "few shifted rows", "shifted columns",
      "packed columns", "staged columns", "dense columns",  "singles"};
  return kNames[static_cast<int>(kernel)];
}

}  // namespace fusedops
