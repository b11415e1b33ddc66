#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <tuple>

#include "csrc/common/device/cluster.cuh"
#include "csrc/common/int_math.h"
#include "csrc/cuda/rows/team/row_plan.h"

namespace fusedops {
namespace {

constexpr int kTeamThreads = 128;  // of a block whose warps hold rows of their own

int64_t slot_bytes(const RowProblem& problem, int cluster, int threads) {
  return problem.compute_bytes == 8 ? row_slot_bytes<double>(cluster, threads)
                                    : row_slot_bytes<float>(cluster, threads);
}

// Barriers and rows on their way: `teams` of them in a block, `chunks` of a row in a team.
int64_t ring_bytes(RowPlan& plan, const RowProblem& problem, int teams, int64_t chunks) {
  // NOTE: rows of few lanes lie beside each other, else their chunks would share banks.
  const int lanes = plan.layout.lanes;
  const int64_t pitch = lanes < 8 ? round_up(chunks * 16, 128) + lanes * 16 : chunks * 16;
  plan.layout.pitch = static_cast<int>(pitch);
  return row_barrier_bytes(plan.threads / 32) + int64_t{kRowStages} * problem.words * pitch * teams;
}

int power_of_two(int64_t at_least) {
  int value = 1;
  while (value < at_least) value *= 2;
  return value;
}

int64_t teams_per_block(const RowPlan& plan) {
  return plan.layout.cluster == 0 ? plan.threads / plan.layout.lanes : 1;
}

RowPlan warp_plan(const RowProblem& problem, int64_t chunks, int per_thread) {
  RowPlan plan;
  const int lanes = std::min(32, power_of_two(ceil_div(chunks, per_thread)));
  plan.held = true;
  plan.threads = kTeamThreads;
  const int held = problem.filled ? problem.max_chunks : static_cast<int>(ceil_div(chunks, lanes));
  plan.layout = {problem.rows, static_cast<int>(problem.n), lanes, 0, held};
  plan.shared_bytes =
      ring_bytes(plan, problem, plan.threads / lanes, int64_t{plan.layout.chunks} * lanes);
  return plan;
}

}  // namespace

int64_t row_chunks(int64_t n, int vec) {
  const int64_t shift = vec - std::gcd<int64_t>(n, vec);  // the largest
  return ceil_div(n + shift, vec);
}

RowPlan plan_team(const RowProblem& problem, int sm_count, int64_t shared_limit,
                  int cluster_limit) {
  const int64_t chunks =
      problem.whole ? problem.n / problem.vec : row_chunks(problem.n, problem.vec);
  // NOTE: few rows leave the GPU idle unless each is spread over more threads.
  const int per_thread = problem.rows >= int64_t{4} * sm_count   ? problem.max_chunks
                         : problem.rows >= int64_t{2} * sm_count ? (problem.max_chunks + 1) / 2
                                                                 : 1;
  if (!problem.whole && chunks <= int64_t{32} * per_thread) {
    return warp_plan(problem, chunks, per_thread);
  }
  for (int cluster = 1; cluster <= cluster_limit; cluster *= 2) {
    const int64_t share = ceil_div(chunks, cluster);  // chunks of a block
    if (share > int64_t{kRowThreads} * problem.max_chunks) continue;
    RowPlan plan;
    plan.threads =
        static_cast<int>(std::min<int64_t>(kRowThreads, round_up(ceil_div(share, per_thread), 32)));
    const int64_t held = problem.filled ? problem.max_chunks : ceil_div(share, plan.threads);
    plan.layout = {problem.rows, static_cast<int>(problem.n), 32, cluster, static_cast<int>(held)};
    plan.shared_bytes = slot_bytes(problem, cluster, plan.threads) +
                        ring_bytes(plan, problem, 1, held * plan.threads);
    plan.held = plan.shared_bytes <= shared_limit;
    if (plan.held) return plan;
  }
  return {};
}

int resident_blocks(const void* kernel, const RowPlan& plan, const LaunchScope& scope) {
  using Key = std::tuple<const void*, int, int, int, int64_t>;
  static std::mutex mutex;
  static std::map<Key, int> known;
  const int cluster = std::max(plan.layout.cluster, 1);
  const Key key{kernel, scope.device(), plan.threads, cluster, plan.shared_bytes};
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;

  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       scope.facts().shared_memory_per_block);
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                       cudaSharedmemCarveoutMaxShared);
  int blocks = 0;
  if (cluster == 1) {
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, plan.threads,
                                                  static_cast<size_t>(plan.shared_bytes));
    blocks *= scope.facts().sm_count;
  } else {
    blocks = cluster * resident_clusters(kernel, cluster, plan.threads, plan.shared_bytes);
  }
  check_launch("resident_blocks");
  return known[key] = blocks;
}

void plan_blocks(RowPlan& plan, const RowProblem& problem, int resident) {
  const int64_t per_team = std::max(plan.layout.cluster, 1);  // blocks of a team
  const int64_t per_block = teams_per_block(plan);
  int64_t teams = std::max<int64_t>(resident / per_team * per_block, 1);
  if (problem.rows_per_team > 0 && plan.layout.cluster <= 1) {
    // NOTE: few rows get a team each all the same.
    teams = std::max(teams, ceil_div(problem.rows, int64_t{problem.rows_per_team}));
  }
  // NOTE: a team's rows begin at the same place inside a chunk if its stride is a multiple of this.
  const int64_t period = problem.vec / std::gcd<int64_t>(problem.n, problem.vec);
  teams = teams >= period ? teams / period * period : period;
  if (problem.rows < teams) teams = problem.rows;
  plan.blocks = ceil_div(teams, per_block) * per_team;
  plan.stays = problem.rows > teams && (problem.rows_per_team == 0 || plan.layout.cluster > 1);
}

RowPlan plan_rows(const void* kernel, const RowProblem& problem, const LaunchScope& scope) {
  const bool clusters = scope.facts().code_version >= 90;
  RowPlan plan = plan_team(problem, scope.facts().sm_count, scope.facts().shared_memory_per_block,
                           clusters ? kRowCluster : 1);
  if (!plan.held) return plan;
  int resident = resident_blocks(kernel, plan, scope);
  plan.held = resident > 0;
  if (problem.sm_threads > 0 && plan.layout.cluster <= 1) {
    resident = std::min(resident, problem.sm_threads / plan.threads * scope.facts().sm_count);
  }
  plan_blocks(plan, problem, resident);
  // NOTE: where a team has one row, threads that ask for their own chunks have them sooner.
  plan.layout.bulk =
      problem.bulk && clusters &&
      problem.rows > plan.blocks / std::max(plan.layout.cluster, 1) * teams_per_block(plan);
  return plan;
}

namespace {

constexpr int64_t kLongRow = 8448;  // chunks: two blocks share a multiprocessor

constexpr int kClusterThreads = 1024, kClusterChunks = 2;  // of a block, of a thread

// chunks: that a row touches; held: that threads of a block hold.
DirectKind direct_kind(int64_t rows, int64_t chunks, int64_t held, int block_chunks, int sm_count,
                       int cluster_limit) {
  if (rows * chunks <= sm_count * kFewChunks) {
    return chunks <= 32            ? DirectKind::kFewLanes
           : chunks <= kRowThreads ? DirectKind::kFewBlocks
           : chunks <= int64_t{cluster_limit} * kClusterThreads * kClusterChunks
               ? DirectKind::kFewClusters
               : DirectKind::kNone;
  }
  if (chunks <= 128) return DirectKind::kLanes;
  if (held <= int64_t{kBlockThreads} * block_chunks) return DirectKind::kBlock;
  if (held <= int64_t{kWideThreads} * block_chunks) return DirectKind::kWide;
  return held <= kLongRow ? DirectKind::kLong : DirectKind::kNone;
}

}  // namespace

DirectPlan plan_direct(int64_t rows, int64_t n, int vec, const DirectBlocks& blocks,
                       const LaunchScope& scope) {
  const int64_t chunks = ceil_div(n, vec), of_block = blocks.ends ? n / vec : chunks;
  const int cluster_limit = scope.facts().code_version >= 90 ? kRowCluster : 0;
  DirectPlan plan{
      direct_kind(rows, chunks, of_block, blocks.chunks, scope.facts().sm_count, cluster_limit),
      {}};
  RowPlan& held = plan.rows;
  const auto lanes_of = [&](int threads, int64_t per_thread) {
    const int lanes = power_of_two(ceil_div(chunks, per_thread));
    held = {true, {rows, static_cast<int>(n), lanes, 0}, threads};
    held.blocks = ceil_div(rows, int64_t{threads} / lanes);
  };
  const auto block_of = [&](int64_t count, int64_t per_thread, int64_t most) {
    const int64_t threads = std::min(round_up(ceil_div(count, per_thread), 32), most);
    held = {true, {rows, static_cast<int>(n), 32, 1}, static_cast<int>(threads)};
    held.blocks = rows;
    const int64_t beyond = ceil_div(count, threads) - per_thread;
    held.shared_bytes = std::max<int64_t>(beyond, 0) * threads * 16;
  };
  // NOTE: few threads in many blocks have their sums soonest.
  const auto cluster_of = [&] {
    const int cluster = std::min(power_of_two(ceil_div(chunks, kRowThreads)), cluster_limit);
    const int64_t threads = round_up(ceil_div(chunks, int64_t{cluster} * kClusterChunks), 32);
    held = {true, {rows, static_cast<int>(n), 32, cluster}, static_cast<int>(threads)};
    held.blocks = rows * cluster;
  };
  switch (plan.kind) {
    case DirectKind::kNone: return plan;
    case DirectKind::kFewLanes: lanes_of(128, 1); break;
    case DirectKind::kFewBlocks: block_of(chunks, 1, kRowThreads); break;
    case DirectKind::kFewClusters: cluster_of(); break;
    case DirectKind::kLanes: lanes_of(64, 4); break;
    case DirectKind::kBlock: block_of(of_block, blocks.chunks, kBlockThreads); break;
    case DirectKind::kWide: block_of(of_block, blocks.chunks, kWideThreads); break;
    case DirectKind::kLong: block_of(chunks, blocks.long_chunks, blocks.long_threads); break;
  }
  constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
  const int64_t shared_limit = scope.facts().shared_memory_per_block - kDirectSlotBytes;
  if (held.blocks > kMostBlocks || held.shared_bytes > shared_limit) plan.kind = DirectKind::kNone;
  return plan;
}

int64_t blocks_of_long_rows(int64_t rows, const LaunchScope& scope) {
  return std::min<int64_t>(rows, int64_t{scope.facts().sm_count} * kStreamBlocks);
}

namespace {

// Elements between the rows, if the last inner_dims dims are contiguous and the others have one
// stride.
std::optional<int64_t> row_stride(const Tensor& x, int64_t n, int64_t inner_dims) {
  const auto sizes = x.sizes();
  const auto strides = x.strides();
  int64_t dim = x.dim() - 1;
  int64_t expected = 1;
  for (; dim >= x.dim() - inner_dims; --dim) {
    if (sizes[dim] != 1 && strides[dim] != expected) return std::nullopt;
    expected *= sizes[dim];
  }
  while (dim >= 0 && sizes[dim] == 1) --dim;
  if (dim < 0) return n;
  const int64_t stride = strides[dim];
  expected = stride * sizes[dim];
  for (--dim; dim >= 0; --dim) {
    if (sizes[dim] == 1) continue;
    if (strides[dim] != expected) return std::nullopt;
    expected *= sizes[dim];
  }
  return stride;
}

}  // namespace

RowInput row_input(const Tensor& x, int64_t n, int64_t inner_dims, int vec) {
  const std::optional<int64_t> stride = row_stride(x, n, inner_dims);
  const bool aligned = reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  const bool fits = stride && *stride >= n && (*stride - n) % vec == 0;
  if (fits && aligned) return {x, *stride};
  return {x.is_contiguous() ? torch::stable::clone(x) : dense(x), n};
}

}  // namespace fusedops
