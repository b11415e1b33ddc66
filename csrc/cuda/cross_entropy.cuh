// Cross entropy with label smoothing, straight from the logits, and its gradient.
//
//   loss = (1 - s) * (lse - x[target]) + s * (lse - mean(x)),  lse = log(sum(exp(x)))
//   dx = (exp(x - lse) - (1 - s) * [column = target] - s / n) * dloss
//
// The forward reads the logits once and writes lse; the backward reads them once more and writes
// the gradient. Storing the gradient in the forward would save that read only while dloss is 1;
// with any other it costs another read and write of it.
#pragma once

#include "cuda/row_exp.cuh"
#include "cuda/row_stream.cuh"
#include "cuda/row_team.cuh"

namespace fusedops {

template <class T>
struct CrossEntropy {
  using C = Compute<T>;
  const T* x;             // [rows, n], rows x_stride apart
  const int64_t* target;  // [rows]
  C* lse;                 // [rows]
  int64_t x_stride, ignore_index;
  C smoothing;
};

// Segments on their way from memory. Every thread copies its own chunks into shared memory
// asynchronously and reads back its own only, so no barrier is needed.
class SegmentRing {
 public:
  // `words`: 16-byte words of one row that a thread holds, of a segment.
  __device__ __forceinline__ SegmentRing(void* shared, int words)
      : base_(static_cast<unsigned>(__cvta_generic_to_shared(shared)) + threadIdx.x * 16),
        stage_bytes_(words * blockDim.x * 16) {}

  __device__ __forceinline__ void copy(int stage, int word, const void* from) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(stage, word)), "l"(from)
                 : "memory");
  }
  // Zeros behind the first `bytes`.
  __device__ __forceinline__ void copy(int stage, int word, const void* from, int bytes) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at(stage, word)), "l"(from),
                 "r"(bytes)
                 : "memory");
  }

  __device__ __forceinline__ void commit() const {
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  // Until the oldest of kRowStages commits has arrived.
  __device__ __forceinline__ void wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kRowStages - 1) : "memory");
  }
  __device__ __forceinline__ void drain() const {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }

  template <class T>
  __device__ __forceinline__ Packed<T, kChunkOf<T>> read(int stage, int word) const {
    Packed<T, kChunkOf<T>> out;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.word[0]), "=r"(out.word[1]), "=r"(out.word[2]), "=r"(out.word[3])
                 : "r"(at(stage, word))
                 : "memory");
    return out;
  }

 private:
  __device__ __forceinline__ unsigned at(int stage, int word) const {
    return base_ + stage * stage_bytes_ + word * (blockDim.x * 16);
  }
  unsigned base_, stage_bytes_;
};

// Rows are cut where memory has its 32-byte sectors: in elements, for chunks of kVec.
template <int kVec>
inline constexpr int kRowAlign = 2 * kVec;

// The chunks of one thread in a segment of a row. Element e of chunk i is column(i) + e; it belongs
// to the row where lo(i) <= e < hi(i).
template <int kVec>
class RowChunks {
 public:
  // Of a row that starts `shift` elements into the chunks and ends after `end`.
  template <class C>
  __device__ __forceinline__ RowChunks(const RowTeam<C>& team, int shift, int end)
      : begin_(team.index() * kVec), step_(team.size() * kVec), shift_(shift), end_(end) {}

  __device__ __forceinline__ int column(int i) const { return begin(i) - shift_; }
  __device__ __forceinline__ bool empty(int i) const { return begin(i) >= end_; }
  __device__ __forceinline__ int hi(int i) const {
    const int left = end_ - begin(i);
    return left < kVec ? left : kVec;
  }
  __device__ __forceinline__ int lo(int i) const {
    const int before = i == 0 ? shift_ - begin_ : 0;
    return before <= 0 ? 0 : before < kVec ? before : kVec;
  }
  __device__ __forceinline__ bool full(int i) const {
    return begin(i) + kVec <= end_ && (i > 0 || begin_ >= shift_);
  }

  // These chunks, or none.
  __device__ __forceinline__ RowChunks only_if(bool active) const {
    RowChunks chunks = *this;
    if (!active) chunks.end_ = 0;
    return chunks;
  }

  // fn(e) for the elements of chunk i that belong to the row.
  template <class Fn>
  __device__ __forceinline__ void each(int i, Fn fn) const {
    if (full(i)) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) fn(e);
    } else if (!empty(i)) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        if (e >= lo(i) && e < hi(i)) fn(e);
      }
    }
  }

  // Asks for chunk i, at `chunk`.
  template <class T>
  __device__ __forceinline__ void fetch(const SegmentRing& ring, int stage, const T* chunk,
                                        int i) const {
    if (full(i)) {
      ring.copy(stage, i, chunk);
    } else if (!empty(i) && lo(i) < kVec) {
      ring.copy(stage, i, chunk, hi(i) * static_cast<int>(sizeof(T)));
    }
  }

 private:
  // Elements from the start of the row's first chunk.
  __device__ __forceinline__ int begin(int i) const { return begin_ + i * step_; }

  int begin_, step_, shift_, end_;
};

// Of a team's rows: added in the order of the rows.
struct LossSum {
  double loss, count;
};

// Largest value, sum of exponentials relative to it, sum of values.
template <class T>
struct LogitSums {
  using C = Compute<T>;
  C top = -static_cast<C>(INFINITY), sum = 0, values = 0;

  template <int kVec, int kCount>
  __device__ __forceinline__ void add(const RowChunks<kVec>& chunks, Packed<T, kVec> (&x)[kCount],
                                      bool smoothing) {
    const C before = top;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      chunks.each(i, [&](int e) { top = larger(top, x[i].at(e)); });
    }
    const C base = finite_top(top);
    sum *= exp_from<T>(before, base);
    hold(x);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      chunks.each(i, [&](int e) { sum += exp_from<T>(x[i].at(e), base); });
      if (smoothing) chunks.each(i, [&](int e) { values += x[i].at(e); });
    }
  }
};

// Where a team is in its rows: a row is read in segments of kRowChunks chunks per thread.
template <int kVec>
struct RowCursor {
  int64_t row;    // of this lane
  int64_t begin;  // elements from the row's first chunk to the segment

  // The chunks of this segment; element e of chunk i is column(i) + e from `start`.
  template <class C>
  __device__ __forceinline__ RowChunks<kVec> chunks(const RowTeam<C>& team, int64_t n,
                                                    int shift) const {
    const int64_t left = shift + n - begin;
    return {team, begin == 0 ? shift : 0, static_cast<int>(left < (1 << 30) ? left : (1 << 30))};
  }
  template <class C>
  __device__ __forceinline__ void advance(const RowTeam<C>& team, int64_t n) {
    begin += int64_t{team.size()} * kRowChunks * kVec;
    if (begin < n + kRowAlign<kVec>) return;
    begin = 0;
    row += team.stride();
  }
};

// The loss of a row whose logits a team has seen; leaders only get a meaningful one.
template <class T, class C>
__device__ __forceinline__ C row_loss(RowTeam<C>& team, const LogitSums<T>& mine, C chosen,
                                      C smoothing, int64_t n, C& lse) {
  const C top = team.warp_max(mine.top);
  const C sum = team.warp_sum(mine.sum * exp_from<T>(mine.top, finite_top(top)));
  C values = team.warp_sum(mine.values);
  const RowNormaliser<C> row = join_normaliser<T>(team, top, sum, values);
  if (!team.in_warp()) values = team.sum_slots([](const RowSlot<C>& s) { return s.c; });
  const C log_sum = standard_log(row.sum);
  lse = row.top + log_sum;
  const C loss = (1 - smoothing) * (row.top - chosen + log_sum);
  if (smoothing == 0) return loss;
  return loss + smoothing * (lse - values / static_cast<C>(n));
}

// loss: [rows] of O, or null; sums: one per team, or null.
template <class T, class O>
__global__ void __launch_bounds__(kStreamThreads, kStreamBlocks)
    cross_entropy_kernel(CrossEntropy<T> p, O* loss, LossSum* sums, RowLayout layout, int64_t n) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  RowTeam<C> team(layout, shared);
  const SegmentRing ring(shared + row_slot_bytes<C>(layout.cluster, blockDim.x) / 16, kRowChunks);
  const auto shift_of = [&](int64_t row) { return static_cast<int>(row * n % kRowAlign<kVec>); };

  RowCursor<kVec> ahead{team.first() + team.sub(), 0};
  const auto fetch = [&](int stage) {
    if (ahead.row < layout.rows) {
      const int shift = shift_of(ahead.row);
      const RowChunks<kVec> chunks = ahead.chunks(team, n, shift);
      const T* start = p.x + ahead.row * p.x_stride + (ahead.begin == 0 ? 0 : ahead.begin - shift);
#pragma unroll
      for (int i = 0; i < kRowChunks; ++i) {
        chunks.fetch(ring, stage, start + chunks.column(i), i);
      }
      ahead.advance(team, n);
    }
    ring.commit();
  };
#pragma unroll
  for (int s = 0; s < kRowStages - 1; ++s) fetch(s);

  LossSum total{0, 0};
  int stage = 0;
  for (int64_t base = team.first(); base < layout.rows; base += team.stride()) {
    const int64_t row = base + team.sub();
    const bool active = row < layout.rows;
    const int64_t target = active ? p.target[row] : p.ignore_index;
    const bool counted = target != p.ignore_index;
    C chosen = NAN;  // a target outside of the row gives NaN
    if (team.leader() && counted && target >= 0 && target < n) {
      chosen = to_compute(p.x[row * p.x_stride + target]);
    }
    LogitSums<T> mine;
    RowCursor<kVec> here{0, 0};
    do {
      fetch(previous_stage(stage));
      ring.wait();
      const RowChunks<kVec> chunks =
          here.chunks(team, n, active ? shift_of(row) : 0).only_if(active);
      Packed<T, kVec> x[kRowChunks];
#pragma unroll
      for (int i = 0; i < kRowChunks; ++i) {
        if (!chunks.empty(i)) x[i] = ring.read<T>(stage, i);
      }
      mine.add(chunks, x, p.smoothing != 0);
      stage = next_stage(stage);
      here.advance(team, n);
    } while (here.begin != 0);

    C lse;
    const C value = row_loss(team, mine, chosen, p.smoothing, n, lse);
    if (!team.leader() || !active) continue;
    p.lse[row] = counted ? lse : C{0};
    if (loss != nullptr) loss[row] = from_compute<O>(Compute<O>(counted ? value : C{0}));
    total.loss += counted ? value : C{0};
    total.count += counted;
  }
  ring.drain();
  if (sums != nullptr && team.leader()) sums[team.first() + team.sub()] = total;
}

inline constexpr int kLossThreads = 256;

// loss = sum over the teams in a fixed order, divided by the number of rows that count where mean;
// scale: what the gradient of the loss is multiplied by for each row, or null.
template <class C, class O>
__global__ void __launch_bounds__(kLossThreads)
    cross_entropy_sum_kernel(const LossSum* sums, int64_t teams, bool mean, O* loss, C* scale) {
  __shared__ LossSum shared[kLossThreads];
  wait_for_predecessor();
  LossSum total{0, 0};
  for (int64_t i = threadIdx.x; i < teams; i += kLossThreads) {
    total.loss += sums[i].loss;
    total.count += sums[i].count;
  }
  shared[threadIdx.x] = total;
  for (int width = kLossThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < width) {
      shared[threadIdx.x].loss += shared[threadIdx.x + width].loss;
      shared[threadIdx.x].count += shared[threadIdx.x + width].count;
    }
  }
  if (threadIdx.x != 0) return;
  total = shared[0];
  *loss = from_compute<O>(static_cast<Compute<O>>(mean ? total.loss / total.count : total.loss));
  if (scale != nullptr) *scale = static_cast<C>(1 / total.count);
}

// dloss: [rows] where per_row, else one value; scale: one value or null.
template <class T, class O>
__global__ void __launch_bounds__(kStreamThreads, kStreamBlocks)
    cross_entropy_backward_kernel(CrossEntropy<T> p, const O* dloss, const Compute<T>* scale,
                                  bool per_row, T* dx, RowLayout layout, int64_t n) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  wait_for_predecessor();
  RowTeam<C> team(layout, nullptr);
  const C other = -p.smoothing / static_cast<C>(n);
  const C at_target = other - (1 - p.smoothing);
  for (int64_t base = team.first(); base < layout.rows; base += team.stride()) {
    const int64_t row = base + team.sub();
    if (row >= layout.rows) continue;
    const int64_t target = p.target[row];
    const bool counted = target != p.ignore_index;
    C factor = static_cast<C>(to_compute(dloss[per_row ? row : 0]));
    if (scale != nullptr) factor *= *scale;
    if (counted && (target < 0 || target >= n)) factor = NAN;
    const C lse = p.lse[row];
    T* const out = dx + row * n;
    const int shift = static_cast<int>(row * n % kVec);
    stream_row<T, kVec>(
        p.x + row * p.x_stride, n, shift, team.index(), team.size(), [&](const auto& chunk) {
          C grad[kVec];
          const int64_t offset = target - chunk.column;
          const int at = offset >= 0 && offset < kVec ? static_cast<int>(offset) : -1;
#pragma unroll
          for (int e = 0; e < kVec; ++e) {
            const C g = exp_from<T>(chunk.vec.at(e), lse) + (e == at ? at_target : other);
            grad[e] = counted ? g * factor : C{0};
          }
          store_like(out, chunk, grad);
        });
  }
}

}  // namespace fusedops
