// The epilogue of the mma.sync family: accumulators go through shared memory, a few rows at a time,
// so that neighbouring lanes store neighbouring columns, 16 bytes of accumulator each or, where D
// is misaligned, single elements. Everything but the tile is decided at run time: one kernel serves
// every activation, epilogue and alignment.
// NOTE: CUTLASS's visitor tree would need one kernel per epilogue and alignment.
#pragma once

#include <cutlass/array.h>
#include <cutlass/epilogue/threadblock/epilogue_base.h>
#include <cutlass/epilogue/warp/fragment_iterator_tensor_op.h>
#include <cutlass/epilogue/warp/tile_iterator_tensor_op.h>
#include <cutlass/numeric_conversion.h>

#include "csrc/common/device/activation.cuh"
#include "csrc/cutlass/kernels/sm80/sm80_tile.cuh"

namespace fusedops::sm80 {

template <class Mma>
using WarpOperator = typename Mma::Operator::Policy::Operator;

template <class Mma>
using AccumulatorIterator = cutlass::epilogue::warp::FragmentIteratorTensorOp<
    typename Mma::Operator::Shape, typename WarpOperator<Mma>::Shape,
    typename WarpOperator<Mma>::ElementC, typename WarpOperator<Mma>::FragmentC,
    cutlass::layout::RowMajor>;

template <class Mma>
using StagingIterator = cutlass::epilogue::warp::TileIteratorTensorOp<
    typename Mma::Operator::Shape, typename WarpOperator<Mma>::Shape,
    typename WarpOperator<Mma>::ElementC, cutlass::layout::RowMajor>;

template <class Mma>
using EpilogueBase =
    cutlass::epilogue::threadblock::EpilogueBase<typename Mma::Shape, typename Mma::Operator::Shape,
                                                 1, AccumulatorIterator<Mma>, StagingIterator<Mma>,
                                                 typename StagingIterator<Mma>::Padding>;

template <class Mma, class Element>
class TileEpilogue : public EpilogueBase<Mma> {
  using Base = EpilogueBase<Mma>;
  using Compute = typename WarpOperator<Mma>::ElementC;
  using Warp = typename Mma::Operator::Shape;
  using Staging = typename Base::SharedStorage;

  static constexpr int kRowsPerWarp = 8;  // of one step: half an mma.m16n8 tile
  static constexpr int kSteps = Warp::kM / kRowsPerWarp;
  static constexpr int kTileN = Mma::Shape::kN;
  static constexpr int kThreads = Mma::WarpCount::kCount * 32;
  static constexpr int kStagedRows = Staging::Shape::kRow;
  static constexpr int kStagedStride = Staging::StorageShape::kColumn;
  static constexpr int kVector = 16 / int(sizeof(Compute));
  static constexpr int kPerThread = kStagedRows * kTileN / kThreads;
  static constexpr Accuracy kAccuracy =
      std::is_same_v<Element, cutlass::bfloat16_t> ? Accuracy::kBFloat16 : kAccuracyOf<Element>;
  static_assert(AccumulatorIterator<Mma>::kIterations == kSteps);
  static_assert(kStagedRows == kRowsPerWarp * Mma::Shape::kM / Warp::kM);

  using Values = cutlass::Array<Compute, kPerThread>;

  // A thread's share of the staged rows: kWidth columns from `column` on, every kRowStep-th row.
  template <int kWidth>
  struct Share {
    static constexpr int kGroups = kTileN / kWidth;
    static constexpr int kRowStep = kThreads / kGroups;
    static constexpr int kRows = kPerThread / kWidth;
    static_assert(kThreads % kGroups == 0 && kRows * kRowStep == kStagedRows);
    int row = threadIdx.x / kGroups;
    int column = threadIdx.x % kGroups * kWidth;
  };

  const Output& output_;
  const OutputTile& tile_;
  Compute bias_[kVector];

 public:
  __device__ TileEpilogue(Staging& shared, const Output& output, const OutputTile& tile, int warp,
                          int lane)
      : Base(shared, threadIdx.x, warp, lane), output_(output), tile_(tile) {}

  __device__ void operator()(const typename Base::AccumulatorTile& accumulators) {
    load_bias(output_.vectors ? Share<kVector>{}.column : Share<1>{}.column);
    // NOTE: not unrolled, so that the activations are compiled once.
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      __syncthreads();
      stage(accumulators, step);
      __syncthreads();
      Values values;
      output_.vectors ? load<kVector>(values) : load<1>(values);
      if (tile_.preact != nullptr) store_as<Element>(tile_.preact, values, step);
      activate_array<kAccuracy>(output_.activation, values);
      if constexpr (sizeof(Element) == sizeof(float)) {
        store_as<float>(tile_.d, values, step);
      } else if (output_.as_float) {
        store_as<float>(tile_.d, values, step);
      } else {
        store_as<Element>(tile_.d, values, step);
      }
    }
  }

 private:
  __device__ void load_bias(int column) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const bool inside = tile_.bias != nullptr && column + i < tile_.cols;
      bias_[i] = inside ? Compute(static_cast<const Element*>(tile_.bias)[column + i]) : Compute(0);
    }
  }

  // Copies 8 rows of every warp tile to shared memory.
  // NOTE: unrolled over the steps, since registers cannot be indexed at run time.
  __device__ void stage(const typename Base::AccumulatorTile& accumulators, int step) {
    AccumulatorIterator<Mma> iterator(accumulators);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (i == step) {
        typename AccumulatorIterator<Mma>::Fragment fragment;
        iterator.load(fragment, i);
        this->warp_tile_iterator_.store(fragment);
      }
    }
  }

  template <int kWidth>
  __device__ void load(Values& values) const {
    using Access = cutlass::AlignedArray<Compute, kWidth>;
    const Share<kWidth> share;
    const Compute* staged = this->shared_storage_.data() + share.row * kStagedStride + share.column;
#pragma unroll
    for (int r = 0; r < share.kRows; ++r) {
      const Access access =
          *reinterpret_cast<const Access*>(staged + r * share.kRowStep * kStagedStride);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[r * kWidth + i] = access[i] + bias_[i];
    }
  }

  template <class Out>
  __device__ void store_as(void* destination, const Values& values, int step) const {
    Out* out = static_cast<Out*>(destination);
    output_.vectors ? store<kVector>(out, values, step) : store<1>(out, values, step);
  }

  template <int kWidth, class Out>
  __device__ void store(Out* out, const Values& values, int step) const {
    using Access = cutlass::AlignedArray<Out, kWidth>;
    const cutlass::NumericConverter<Out, Compute> convert;
    const Share<kWidth> share;
    if (share.column >= tile_.cols) return;
    const int width = min(kWidth, tile_.cols - share.column);
#pragma unroll
    for (int r = 0; r < share.kRows; ++r) {
      // Row of the tile: each warp row staged its own 8 rows of this step.
      const int staged_row = share.row + r * share.kRowStep;
      const int row =
          staged_row / kRowsPerWarp * Warp::kM + step * kRowsPerWarp + staged_row % kRowsPerWarp;
      if (row >= tile_.rows) continue;
      Access access;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) access[i] = convert(values[r * kWidth + i]);
      Out* first = out + row * output_.ldd + share.column;
      if (width == kWidth) {
        *reinterpret_cast<Access*>(first) = access;
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          if (i < width) first[i] = access[i];
        }
      }
    }
  }
};

}  // namespace fusedops::sm80
