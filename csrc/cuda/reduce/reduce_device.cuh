// What the reduction kernels share: the layout, where a batch entry lies, loads, sums over lanes
// and the two kinds of results.
#pragma once

#include "csrc/cuda/reduce/reduce_ops.cuh"

namespace fusedops {

// Where a batch entry starts, and where its result goes in [parts, outputs].
struct ReducePlace {
  int64_t in = 0, slot = 0, index = 0;
};

__device__ __forceinline__ ReducePlace place_of(const ReducePlan& plan, int64_t batch) {
  ReducePlace place;
  if (plan.num_batch <= 1) {
    const ReduceBatch& dim = plan.batch[0];
    return {batch * dim.stride, batch * dim.slot, batch * dim.index};
  }
#pragma unroll 1
  for (int i = plan.num_batch - 1; i >= 0; --i) {
    const ReduceBatch& dim = plan.batch[i];
    // NOTE: a 64-bit division costs more than a short row.
    const int64_t rest = (batch | dim.size) >> 32
                             ? batch / dim.size
                             : static_cast<uint32_t>(batch) / static_cast<uint32_t>(dim.size);
    const int64_t position = batch - rest * dim.size;
    batch = rest;
    place.in += position * dim.stride;
    place.slot += position * dim.slot;
    place.index += position * dim.index;
  }
  return place;
}

template <class T>
inline constexpr int kVecOf = 16 / sizeof(T);

template <class T, int N>
__device__ __forceinline__ Vec<T, N> load_vector(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}

// Copies `count` elements from an aligned address to shared memory by vectors, all of them on their
// way at a time, and waits for the whole block.
template <class T, int N>
__device__ __forceinline__ void stage_tile(Vec<T, N>* tile, const T* x, int count) {
  const int vectors = count / N;
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(tile));
#pragma unroll 4
  for (int i = threadIdx.x; i < vectors; i += kReduceThreads) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared + i * 16), "l"(x + i * N)
                 : "memory");
  }
  const int rest = vectors * N + threadIdx.x;
  if (rest < count) reinterpret_cast<T*>(tile)[rest] = x[rest];
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}

// The same from any address. The elements begin up to a vector into the tile, which has one vector
// more; a vector that reaches beyond the tensor goes element by element.
template <class T, int N>
__device__ __forceinline__ const T* stage_unaligned(Vec<T, N>* tile, const T* x, int count,
                                                    const ReduceArgs& args) {
  const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
  const T *begin = static_cast<const T*>(args.x), *end = begin + args.plan.span;
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(tile));
#pragma unroll 4
  for (int i = threadIdx.x; i * N < lead + count; i += kReduceThreads) {
    const T* from = x - lead + i * N;
    if (from >= begin && from + N <= end) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared + i * 16), "l"(from)
                   : "memory");
    } else {
      for (int k = 0; k < N; ++k) {
        if (from + k >= x && from + k < end) tile[i].value[k] = from[k];
      }
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  return reinterpret_cast<const T*>(tile) + lead;
}

// x -> (x & keep) ^ flip on the bits.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> masked(const Vec<T, N>& vector, const ReduceOptions& options) {
  constexpr int kBytes = sizeof(T) * N;
  using Word = std::conditional_t<kBytes % 4 == 0, uint32_t,
                                  std::conditional_t<kBytes == 2, uint16_t, uint8_t>>;
  Vec<T, N> result;
  const Word* from = reinterpret_cast<const Word*>(&vector);
  Word* to = reinterpret_cast<Word*>(&result);
#pragma unroll
  for (size_t i = 0; i < kBytes / sizeof(Word); ++i) {
    const int half = sizeof(T) == 8 && i % 2 == 1 ? 32 : 0;  // the high word has the sign
    to[i] = (from[i] & static_cast<Word>(options.keep >> half)) ^
            static_cast<Word>(options.flip >> half);
  }
  return result;
}

// N elements side by side.
template <class Op, int N>
__device__ __forceinline__ void absorb_vector(typename Op::Running& acc,
                                              const Vec<typename Op::Element, N>& vector,
                                              int position, const ReduceOptions& options) {
  Key<typename Op::Element> keys[N];
  const auto elements = Op::kMasked ? masked(vector, options) : vector;
#pragma unroll
  for (int i = 0; i < N; ++i) keys[i] = to_key(elements.value[i]);
  Op::template absorb<N>(acc, keys, position, 1, options);
}

// Keys of one column out of the rows that a thread has loaded.
template <class Op, int kVec, int kRows>
__device__ __forceinline__ void absorb_rows(typename Op::Running (&acc)[kVec],
                                            Vec<typename Op::Element, kVec> (&rows)[kRows],
                                            int position, int step, const ReduceOptions& options) {
  using T = typename Op::Element;
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    if constexpr (Op::kMasked) rows[u] = masked(rows[u], options);
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    Key<T> keys[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) keys[u] = to_key(rows[u].value[i]);
    Op::template absorb<kRows>(acc[i], keys, position, step, options);
  }
}

template <class Acc>
__device__ __forceinline__ Acc shuffle_down(const Acc& acc, int delta) {
  static_assert(sizeof(Acc) % 4 == 0);
  union {
    Acc acc;
    unsigned words[sizeof(Acc) / 4];
  } from{acc}, to{acc};
#pragma unroll
  for (size_t i = 0; i < sizeof(Acc) / 4; ++i) {
    to.words[i] = __shfl_down_sync(0xffffffffu, from.words[i], delta);
  }
  return to.acc;
}

// Lane 0 of each group of `lanes` (a power of two) ends up with the group's result.
template <class Op>
__device__ __forceinline__ void combine_lanes(typename Op::Acc& acc, int lanes,
                                              const ReduceOptions& options) {
#pragma unroll
  for (int delta = 16; delta > 0; delta /= 2) {
    if (delta < lanes) Op::combine(acc, shuffle_down(acc, delta), options);
  }
}

template <class Op, class Out, int N>
__device__ __forceinline__ void write_results(const ReduceArgs& args,
                                              const typename Op::Acc (&acc)[N], int64_t output) {
  Vec<Out, N> results;
#pragma unroll
  for (int i = 0; i < N; ++i) results.value[i] = Op::template finish<Out>(acc[i], args.options);
  *reinterpret_cast<Vec<Out, N>*>(static_cast<Out*>(args.out) + output) = results;
  if constexpr (Op::kSecond) {
    using Second = decltype(Op::template second<Out>(acc[0], args.options));
#pragma unroll
    for (int i = 0; i < N; ++i) {
      static_cast<Second*>(args.second)[output + i] =
          Op::template second<Out>(acc[i], args.options);
    }
  }
}

// Final results of N neighbouring outputs; an N above 1 asks for outputs aligned to N.
template <class Op, int N>
__device__ __forceinline__ void finish_outputs(const ReduceArgs& args,
                                               const typename Op::Acc (&acc)[N], int64_t output) {
  if (args.options.wide) {
    write_results<Op, typename Op::Wide>(args, acc, output);
  } else {
    write_results<Op, typename Op::Narrow>(args, acc, output);
  }
}

// One result of pass 1: final, or for pass 2.
template <class Op>
__device__ __forceinline__ void emit(const ReduceArgs& args, const typename Op::Acc& acc,
                                     int64_t slot) {
  if (args.plan.parts > 1) {
    static_cast<typename Op::Acc*>(args.partial)[slot] = acc;
  } else {
    const typename Op::Acc one[1] = {acc};
    finish_outputs<Op>(args, one, slot);
  }
}

}  // namespace fusedops
