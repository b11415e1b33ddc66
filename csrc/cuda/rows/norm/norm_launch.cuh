// What layer_norm and rms_norm share on CUDA: checks, plans and launches. One file per op.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>
#include <type_traits>

#include "csrc/common/checks/row_check.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/rows/norm/norm_ends.cuh"
#include "csrc/cuda/rows/team/row_plan.h"

namespace fusedops::cuda {

struct NormTensors {
  const Tensor& x;
  const std::optional<Tensor>& residual;
  const std::optional<Tensor>& weight;
  const std::optional<Tensor>& bias;
  Tensor y, sum, mean, rstd;
};

template <class T>
T* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor ? static_cast<T*>(const_cast<void*>(tensor->const_data_ptr())) : nullptr;
}

// ---- half rows, a team for every row ----

enum class NormKind {
  kNone,
  kFewLanes,     // few rows get a thread for every chunk: lanes of a warp,
  kFewBlocks,    // or a block,
  kFewClusters,  // or for two chunks, of a cluster
  kLanes,
  kFull8,  // lanes that their row fills
  kFull16,
  kFull32,
  kEnds,  // lanes of a row that begins inside a chunk
  kBlock,
  kWide,
  kLong,      // a block that keeps a part of its row in shared memory,
  kTallLong,  // or one of up to 1024 threads
  kTwo,       // a block of up to 512 threads, of two chunks each
  kTall1,     // a block of up to 1024 threads, of a chunk each, two or four,
  kTall2,
  kTall4,
  kTallClusters,  // or a cluster of those
};

// plan_norm chooses these kinds for rows of each sort.
template <bool kRms, bool kResidual, bool kRagged>
constexpr auto norm_kinds() {
  using K = NormKind;
  if constexpr (kRagged) {
    return Choices<K::kFewLanes, K::kFewBlocks, K::kFewClusters, K::kLanes, K::kEnds, K::kBlock,
                   K::kWide, K::kLong>{};
  } else if constexpr (kResidual) {
    return Choices<K::kFewLanes, K::kFewBlocks, K::kFewClusters, K::kLanes, K::kFull8, K::kFull16,
                   K::kFull32, K::kBlock, K::kLong, K::kTall1, K::kTall2, K::kTall4,
                   K::kTallClusters>{};
  } else if constexpr (kRms) {
    return Choices<K::kFewLanes, K::kFewBlocks, K::kFewClusters, K::kLanes, K::kFull8, K::kFull16,
                   K::kFull32, K::kBlock, K::kTwo, K::kWide, K::kLong, K::kTallLong>{};
  } else {
    return Choices<K::kFewLanes, K::kFewBlocks, K::kFewClusters, K::kLanes, K::kFull8, K::kFull16,
                   K::kFull32, K::kBlock, K::kWide, K::kLong, K::kTallLong>{};
  }
}

struct NormPlan {
  NormKind kind = NormKind::kNone;
  RowPlan rows;
};

constexpr int kNormHeld = 4;  // chunks of a thread in registers
// A thread holds so many chunks of a long row: those that wait in shared memory take the place of
// parameters in L1.
constexpr int long_held(bool ragged, bool residual) { return ragged && !residual ? 4 : 2; }
constexpr int kTwoThreads = 512, kTallThreads = 1024;
constexpr int long_threads(bool residual) { return residual ? 768 : 704; }
constexpr int64_t kClusterRow = 7680;  // chunks: from here on a cluster is faster

// A block's threads, from `least` to `most`, of which the last round of chunks leaves fewest idle.
inline int64_t fitting_threads(int64_t chunks, int64_t least, int64_t most) {
  int64_t best = most;
  for (int64_t threads = most; threads >= least; threads -= 32) {
    if (round_up(chunks, threads) < round_up(chunks, best)) best = threads;
  }
  return best;
}

// Rows that registers of a block do not hold.
inline NormPlan plan_long(int64_t rows, int64_t n, int vec, bool residual,
                          const LaunchScope& scope) {
  const int length = static_cast<int>(n);
  const bool ragged = n % vec != 0;
  const int64_t chunks = n / vec + (ragged ? kLineChunks - 1 : 0);
  if (residual && !ragged && chunks > kClusterRow && scope.facts().code_version >= 90) {
    const int64_t cluster = ceil_div(chunks, int64_t{kNormHeld} * kTallThreads);
    const int64_t threads = round_up(ceil_div(chunks, kNormHeld * cluster), 32);
    const RowLayout layout{rows, length, 32, static_cast<int>(cluster)};
    return {NormKind::kTallClusters, {true, layout, static_cast<int>(threads), 0, rows * cluster}};
  }
  const int64_t few = fitting_threads(chunks, 608, long_threads(residual));
  const int64_t many = fitting_threads(chunks, 896, kTallThreads);
  const bool tall = !residual && !ragged && round_up(chunks, many) <= round_up(chunks, few);
  const int64_t threads = tall ? many : few;
  const int64_t held = long_held(ragged, residual);
  const int64_t rest = std::max<int64_t>(ceil_div(chunks, threads) - held, 0) * threads * 16;
  if (rest > scope.facts().shared_memory_per_block - kDirectSlotBytes) return {};
  return {tall ? NormKind::kTallLong : NormKind::kLong,
          {true, {rows, length, 32, 1}, static_cast<int>(threads), rest, rows}};
}

// Even rows of blocks that wait for fewer bytes at a time: 64 KB on a multiprocessor, or 128 of
// rows that long, are enough, and more cost up to 2.5 % of the bandwidth (kNone where plan_direct's
// blocks are as fast). NOTE: as all thresholds here by `python -m fusedops bench norm` on an H200;
// perf/results/h200/norm.csv has the rows of what was chosen, not of what was tried.
inline NormPlan plan_tall(int64_t rows, int64_t n, int64_t chunks, bool residual) {
  const auto plan = [&](NormKind kind, int per_thread) {
    const int64_t threads = round_up(ceil_div(chunks, int64_t{per_thread}), 32);
    const RowLayout layout{rows, static_cast<int>(n), 32, 1};
    return NormPlan{kind, {true, layout, static_cast<int>(threads), 0, rows}};
  };
  if (!residual) {
    return chunks > 256 && chunks <= 2 * kTwoThreads ? plan(NormKind::kTwo, 2) : NormPlan{};
  }
  if (chunks < kTallThreads / 2) return {};
  if (chunks <= kTallThreads) return plan(NormKind::kTall1, 1);
  if (chunks <= 2 * kTallThreads) return plan(NormKind::kTall2, 2);
  if (chunks <= 4 * kTallThreads) return plan(NormKind::kTall4, 4);
  return {};
}

// plan_direct's, and what norms do otherwise.
inline NormPlan plan_norm(int64_t rows, int64_t n, int vec, bool rms, bool residual,
                          const LaunchScope& scope) {
  const bool ragged = n % vec != 0;
  const DirectBlocks blocks{.chunks = kNormHeld, .ends = true};
  const DirectPlan plan = plan_direct(rows, n, vec, blocks, scope);
  const int lanes = plan.rows.layout.lanes;
  const bool full = n == int64_t{lanes} * kNormHeld * vec;
  const auto kind = [&] {
    switch (plan.kind) {
      case DirectKind::kNone: break;
      case DirectKind::kFewLanes: return NormKind::kFewLanes;
      case DirectKind::kFewBlocks: return NormKind::kFewBlocks;
      case DirectKind::kFewClusters: return NormKind::kFewClusters;
      case DirectKind::kLanes:
        // NOTE: the ends of a row take 16 lanes.
        if (ragged && lanes >= 16) return NormKind::kEnds;
        if (full && lanes == 8) return NormKind::kFull8;
        if (full && lanes == 16) return NormKind::kFull16;
        if (full && lanes == 32) return NormKind::kFull32;
        return NormKind::kLanes;
      case DirectKind::kBlock: return NormKind::kBlock;
      case DirectKind::kWide: return NormKind::kWide;
      case DirectKind::kLong: break;
    }
    return NormKind::kNone;
  };
  const bool block = plan.kind == DirectKind::kBlock || plan.kind == DirectKind::kWide ||
                     plan.kind == DirectKind::kLong;
  if (block && !ragged && (rms || residual)) {
    const NormPlan tall = plan_tall(rows, n, n / vec, residual);
    if (tall.kind != NormKind::kNone) return tall;
  }
  if (plan.kind == DirectKind::kLong) return plan_long(rows, n, vec, residual, scope);
  return {kind(), plan.rows};
}

// The kernels of a kind. 64 * 16 and 256 * 4 are 1024 threads on a multiprocessor, for each of
// which it has 64 registers. Kernels that need more ask for fewer blocks, as `bench norm` found
// best.
template <bool kRms, class T, bool kResidual, NormKind kKind>
constexpr auto even_norm_kernel() {
  using K = NormKind;
  constexpr auto kFull = []<int kLanes>(Tag<kLanes>) {
    constexpr RowVariant kVariant{.threads = 64, .blocks = 16, .held = kNormHeld, .full = true};
    return norm_ends_kernel<kRms, kResidual, T, FixedLanes<kLanes>, kVariant>;
  };
  if constexpr (kKind == K::kLanes) {
    constexpr RowVariant kVariant = direct_variant<DirectKind::kLanes>(false);
    return norm_direct_kernel<kRms, kResidual, T, LaneTeam, kVariant>;
  } else if constexpr (kKind == K::kFull8) {
    return kFull(Tag<8>{});
  } else if constexpr (kKind == K::kFull16) {
    return kFull(Tag<16>{});
  } else if constexpr (kKind == K::kFull32) {
    return kFull(Tag<32>{});
  } else if constexpr (kKind == K::kBlock) {
    constexpr RowVariant kVariant = direct_variant<DirectKind::kBlock>(false);
    return norm_direct_kernel<kRms, kResidual, T, BlockTeam, kVariant>;
  } else if constexpr (kKind == K::kWide) {
    constexpr RowVariant kVariant{
        .threads = kWideThreads, .blocks = kRms ? 2 : 3, .held = kNormHeld};
    return norm_direct_kernel<kRms, kResidual, T, BlockTeam, kVariant>;
  } else if constexpr (kKind == K::kTallClusters) {
    constexpr RowVariant kVariant{.threads = kTallThreads, .blocks = 1, .held = kNormHeld};
    return norm_ends_kernel<kRms, kResidual, T, FewClusterTeam, kVariant>;
  } else if constexpr (kKind == K::kTwo) {
    constexpr RowVariant kVariant{.threads = kTwoThreads, .blocks = 4, .held = 2};
    return norm_ends_kernel<kRms, kResidual, T, BlockTeam, kVariant>;
  } else {
    constexpr int kChunks = kKind == K::kTall1 ? 1 : kKind == K::kTall2 ? 2 : 4;
    constexpr RowVariant kVariant{
        .threads = kTallThreads, .blocks = kChunks == 1 ? 2 : 1, .held = kChunks};
    return norm_ends_kernel<kRms, kResidual, T, BlockTeam, kVariant>;
  }
}

template <bool kRms, class T, bool kResidual, NormKind kKind>
constexpr auto ragged_norm_kernel() {
  using K = NormKind;
  if constexpr (kKind == K::kLanes) {
    constexpr RowVariant kVariant{
        .threads = 64, .blocks = kResidual ? 12 : 16, .held = kNormHeld, .ragged = true};
    return norm_direct_kernel<kRms, kResidual, T, LaneTeam, kVariant>;
  } else if constexpr (kKind == K::kEnds) {
    constexpr int kBlocks = kResidual ? 12 : kRms ? 16 : 18;
    constexpr RowVariant kVariant{
        .threads = 64, .blocks = kBlocks, .held = kNormHeld, .ragged = true};
    return norm_ends_kernel<kRms, kResidual, T, LaneTeam, kVariant>;
  } else if constexpr (kKind == K::kBlock) {
    constexpr RowVariant kVariant{
        .threads = kBlockThreads, .blocks = kResidual ? 4 : 5, .held = kNormHeld, .ragged = true};
    return norm_ends_kernel<kRms, kResidual, T, BlockTeam, kVariant>;
  } else {
    constexpr int kBlocks = kRms && !kResidual ? 3 : 2;
    constexpr int kThreads = kRms || kResidual ? kWideThreads : 640;  // for fewer registers
    constexpr RowVariant kVariant{
        .threads = kThreads, .blocks = kBlocks, .held = kNormHeld, .ragged = true};
    return norm_ends_kernel<kRms, kResidual, T, BlockTeam, kVariant>;
  }
}

template <bool kRms, class T, bool kResidual, bool kRagged, NormKind kKind>
constexpr auto norm_kernel_of() {
  using K = NormKind;
  if constexpr (kKind == K::kFewLanes) {
    constexpr RowVariant kVariant = direct_variant<DirectKind::kFewLanes>(kRagged);
    return norm_direct_kernel<kRms, kResidual, T, LaneTeam, kVariant>;
  } else if constexpr (kKind == K::kFewBlocks) {
    constexpr RowVariant kVariant = direct_variant<DirectKind::kFewBlocks>(kRagged);
    return norm_direct_kernel<kRms, kResidual, T, BlockTeam, kVariant>;
  } else if constexpr (kKind == K::kFewClusters) {
    constexpr RowVariant kVariant = direct_variant<DirectKind::kFewClusters>(kRagged);
    return norm_direct_kernel<kRms, kResidual, T, FewClusterTeam, kVariant>;
  } else if constexpr (kKind == K::kLong || kKind == K::kTallLong) {
    constexpr int kThreads = kKind == K::kTallLong ? kTallThreads : long_threads(kResidual);
    constexpr RowVariant kVariant{.threads = kThreads,
                                  .blocks = 2,
                                  .held = long_held(kRagged, kResidual),
                                  .ragged = kRagged,
                                  .overflows = true};
    return norm_ends_kernel<kRms, kResidual, T, BlockTeam, kVariant>;
  } else if constexpr (kRagged) {
    return ragged_norm_kernel<kRms, T, kResidual, kKind>();
  } else {
    return even_norm_kernel<kRms, T, kResidual, kKind>();
  }
}

// Parameters as the kernels of several chunks per thread read them; the tensor keeps them alive.
template <bool kRagged, bool kEnds, class T>
Tensor lay_out_parameters(const Tensor& x, NormForward<T, T>& p, bool bias, int n, int pitch,
                          const LaunchScope& scope) {
  constexpr int kShifts = kRagged ? kChunkOf<T> : 1;
  const bool needed = kRagged || p.weight == nullptr || (bias && p.bias == nullptr);
  const Tensor out = new_dense(x, {needed ? int64_t{2} * kShifts * pitch : 0});
  if (!needed) return out;
  T* const to = static_cast<T*>(out.mutable_data_ptr());
  launch_plain(norm_parameter_kernel<kEnds, T>, dim3(ceil_div(pitch, kStreamThreads), kShifts),
               dim3(kStreamThreads), scope, p.weight, p.bias, to, n, pitch);
  p.weight = to;
  p.bias = to + int64_t{kShifts} * pitch;
  return out;
}

// Rows that threads hold straight from memory; false: not here.
template <bool kRms, class T, bool kRagged>
bool launch_direct(const NormTensors& t, NormForward<T, T>& p, const NormShape& shape,
                   const LaunchScope& scope) {
  const bool residual = p.residual != nullptr;
  const NormPlan plan = plan_norm(shape.rows, shape.n, kChunkOf<T>, kRms, residual, scope);
  const auto aligned = [](const T* from) { return reinterpret_cast<uintptr_t>(from) % 16 == 0; };
  if (plan.kind == NormKind::kNone || p.wide || !aligned(p.weight) || !aligned(p.bias)) {
    return false;
  }
  const int n = static_cast<int>(shape.n);
  const int pitch = static_cast<int>(round_up(n, kLineChunks * kChunkOf<T>));
  dispatch_bool(residual, [&]<bool kResidual>(Tag<kResidual>) {
    dispatch(norm_kinds<kRms, kResidual, kRagged>(), plan.kind, [&]<NormKind K>(Tag<K>) {
      Tensor parameters;
      constexpr bool kFew =
          K == NormKind::kFewLanes || K == NormKind::kFewBlocks || K == NormKind::kFewClusters;
      if constexpr (!kFew) {
        constexpr bool kEnds = K != NormKind::kLanes;
        parameters = lay_out_parameters<kRagged, kEnds>(t.x, p, !kRms, n, pitch, scope);
      }
      constexpr auto kKernel = norm_kernel_of<kRms, T, kResidual, kRagged, K>();
      if (K == NormKind::kLong || K == NormKind::kTallLong) {
        allow_shared_memory<kKernel>(scope.device(),
                                     scope.facts().shared_memory_per_block - kDirectSlotBytes);
      }
      launch_rows(kKernel, plan.rows, scope, p, pitch, plan.rows.layout);
    });
  });
  return true;
}

// ---- all rows ----

template <bool kRms, class T, class W, bool kRagged>
void launch_norm(const NormTensors& t, const NormShape& shape, int64_t norm_dims, double eps,
                 const LaunchScope& scope) {
  // Config
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  const RowInput x = row_input(t.x, shape.n, norm_dims, kVec);
  const RowInput residual = t.residual ? row_input(*t.residual, shape.n, norm_dims, kVec) : x;
  NormForward<T, W> p{};
  p.x = x.as<T>();
  p.x_stride = x.stride;
  p.residual = t.residual ? residual.as<T>() : nullptr;
  p.residual_stride = residual.stride;
  p.weight = data_or_null<const W>(t.weight);
  p.bias = data_or_null<const W>(t.bias);
  p.y = t.y.mutable_data_ptr();
  p.sum = t.residual ? static_cast<T*>(t.sum.mutable_data_ptr()) : nullptr;
  const bool statistics = t.rstd.numel() > 0;
  p.mean = statistics && !kRms ? static_cast<C*>(t.mean.mutable_data_ptr()) : nullptr;
  p.rstd = statistics ? static_cast<C*>(t.rstd.mutable_data_ptr()) : nullptr;
  p.eps = static_cast<C>(eps);
  p.wide = t.y.scalar_type() != t.x.scalar_type();
  if constexpr (sizeof(T) == 2 && std::is_same_v<T, W>) {
    if (launch_direct<kRms, T, kRagged>(t, p, shape, scope)) return;
  }
  // NOTE: a block stays where it fills a multiprocessor, and where its parameters cost more than a
  // row: two of them, or one that it has to load element by element.
  constexpr int kMax = kNormChunks<kRms, T, W, kRagged>;
  const bool stays = !kRms || kRagged || shape.n > kRowThreads / 2 * kMax * kVec;
  const RowProblem problem{shape.rows, shape.n,   kVec,          t.residual ? 2 : 1,
                           kMax,       sizeof(C), stays ? 0 : 3, !kRms || kRagged};
  const auto kernel = norm_kernel<kRms, T, W, kRagged>;
  const RowPlan plan = plan_rows(reinterpret_cast<const void*>(kernel), problem, scope);

  // Launch
  if (plan.held) {
    launch_rows(kernel, plan, scope, p, plan.layout);
  } else {
    launch_plain(norm_long_kernel<kRms, T, W>, dim3(blocks_of_long_rows(shape.rows, scope)),
                 dim3(kStreamThreads), scope, p, shape.rows, shape.n);
  }
}

template <bool kRms>
void norm(const char* op, NormTensors& t, int64_t norm_dims, double eps, bool fp32_out,
          bool need_statistics) {
  // Guard
  const LaunchScope scope(op, t.x);

  // Contract and checks
  const NormShape shape = check_norm(op, t.x, t.residual, t.weight, t.bias, norm_dims, fp32_out);
  const std::optional<Tensor>& parameter = t.weight ? t.weight : t.bias;
  const std::optional<Tensor> weight = dense(t.weight), bias = dense(t.bias);

  // Allocate
  const ScalarType dtype = t.x.scalar_type();
  t.y = new_dense(t.x, t.x.sizes(), fp32_out ? ScalarType::Float : dtype);
  t.sum = t.residual ? new_dense(t.x, t.x.sizes(), dtype) : new_dense(t.x, {0}, dtype);
  const int64_t count = need_statistics ? shape.rows : 0;
  t.rstd = new_dense(t.x, {count}, compute_type(shape.dtype));
  if (!kRms) t.mean = new_dense(t.x, {count}, compute_type(shape.dtype));

  // Empty early return
  if (t.x.numel() == 0) {
    torch::stable::fill_(t.rstd, 0);
    if (!kRms) torch::stable::fill_(t.mean, 0);
    return;
  }

  // Config, launch
  const NormTensors dense{t.x, t.residual, weight, bias, t.y, t.sum, t.mean, t.rstd};
  const bool mixed = parameter && parameter->scalar_type() != dtype;
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    dispatch_bool(mixed, [&]<bool kMixed>(Tag<kMixed>) {
      using T = DeviceType<D>;
      using W = std::conditional_t<kMixed && sizeof(T) == 2, float, T>;
      dispatch_ragged<T>(shape.n, [&]<bool kRagged>(Tag<kRagged>) {
        launch_norm<kRms, T, W, kRagged>(dense, shape, norm_dims, eps, scope);
      });
    });
  });

  // Launch check
  check_launch(op);
}

}  // namespace fusedops::cuda
