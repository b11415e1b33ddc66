// Which kernel a furthest point sampling takes: the cheapest team by figures of an H200 (those of
// four warps are an H100's), what a step takes it. NOTE: perf/results/h200/points.csv has the fps
// rows of what this chooses; no CSV is kept of single teams.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <mutex>

#include "csrc/common/grid_limits.h"
#include "csrc/common/int_math.h"
#include "csrc/cuda/points/sampling/fps_launch.cuh"

namespace fusedops::fps {

// A team and what a step costs it alone, in us: a base, and what each CTA of a grid adds.
struct TeamCost {
  Scope scope;
  int points, threads, team;  // team 0: as many CTAs as the cloud needs
  float step_us, step_us_per_cta = 0.f;

  int64_t capacity() const { return int64_t{points} * threads; }
};

inline constexpr TeamCost kTeams[] = {
    {Scope::kWarps, 2, 128, 1, 0.15f},         {Scope::kWarps, 4, 128, 1, 0.15f},
    {Scope::kWarps, 8, 128, 1, 0.22f},         {Scope::kWarps, 16, 128, 1, 0.29f},
    {Scope::kWarps, 24, 128, 1, 0.39f},        {Scope::kBlock, 2, 128, 1, 0.20f},
    {Scope::kBlock, 2, 256, 1, 0.21f},         {Scope::kBlock, 2, 512, 1, 0.23f},
    {Scope::kBlock, 8, 256, 1, 0.33f},         {Scope::kBlock, 8, 512, 1, 0.42f},
    {Scope::kBlock, 16, 512, 1, 0.72f},        {Scope::kBlock, 24, 512, 1, 0.91f},
    {Scope::kCluster, 4, 256, 4, 0.47f},       {Scope::kCluster, 4, 256, 8, 0.49f},
    {Scope::kCluster, 4, 256, 16, 0.54f},      {Scope::kCluster, 8, 256, 4, 0.54f},
    {Scope::kCluster, 8, 256, 8, 0.56f},       {Scope::kCluster, 8, 512, 2, 0.68f},
    {Scope::kCluster, 8, 512, 4, 0.69f},       {Scope::kCluster, 8, 512, 8, 0.72f},
    {Scope::kCluster, 8, 512, 16, 0.76f},      {Scope::kCluster, 16, 512, 2, 0.95f},
    {Scope::kCluster, 16, 512, 4, 0.96f},      {Scope::kCluster, 16, 512, 8, 1.00f},
    {Scope::kCluster, 16, 512, 16, 1.03f},     {Scope::kCluster, 24, 512, 2, 1.17f},
    {Scope::kCluster, 24, 512, 4, 1.18f},      {Scope::kCluster, 24, 512, 8, 1.20f},
    {Scope::kCluster, 24, 512, 16, 1.24f},     {Scope::kGrid, 8, 512, 0, 1.20f, 0.008f},
    {Scope::kGrid, 16, 512, 0, 1.55f, 0.007f}, {Scope::kGrid, 24, 512, 0, 1.70f, 0.008f},
};
inline constexpr float kNeighbourUs = 0.14f;  // a step's wait for 1024 points of a CTA beside it
inline constexpr int64_t kStreamedValues = 6144;  // worth a CTA of a streaming team

// What a device holds at a time: clusters of a cluster team, CTAs of any other.
struct Residency {
  std::array<int64_t, std::size(kTeams)> teams{};
  int64_t streaming = 0;  // CTAs
};

inline Residency query_residency(int sm_count, bool has_clusters) {
  Residency result;
  int found = 0;
  for (size_t i = 0; i < std::size(kTeams); ++i) {
    const TeamCost& t = kTeams[i];
    const Plan plan{t.scope, t.points, t.threads, std::max(t.team, 1), 1};
    if (t.scope == Scope::kCluster && !has_clusters) continue;
    const cudaError_t error = with_kernel(plan, [&](auto kernel) {
      if (t.scope == Scope::kCluster) {
        const LaunchConfig launch(plan, 1, nullptr);
        return cudaOccupancyMaxActiveClusters(&found, kernel, &launch.config);
      }
      return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel, plan.threads,
                                                           shared_bytes(plan));
    });
    if (error == cudaSuccess) {
      result.teams[i] = t.scope == Scope::kCluster ? found : int64_t{found} * sm_count;
    }
  }
  cudaGetLastError();  // a team that this device refuses
  int wide = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, &fps_stream_kernel<float>, kStreamThreads,
                                                kStagedDims * sizeof(float));
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&wide, &fps_stream_kernel<double>, kStreamThreads,
                                                kStagedDims * sizeof(double));
  result.streaming = int64_t{std::min(found, wide)} * sm_count;
  return result;
}

inline const Residency& residency(int device, int sm_count, bool has_clusters) {
  constexpr int kMaxDevices = 64;
  static std::array<std::once_flag, kMaxDevices> once;
  static std::array<Residency, kMaxDevices> known;
  std::call_once(once[device], [&] { known[device] = query_residency(sm_count, has_clusters); });
  return known[device];
}

inline Plan streaming_plan(const Problem& problem, int64_t resident) {
  const int64_t values = problem.max_length * std::max<int64_t>(problem.clouds.dim, 1);
  const int64_t count = problem.clouds.count;
  const int64_t share = std::max<int64_t>(resident / std::min(count, resident), 1);
  const int64_t team = std::clamp<int64_t>(ceil_div(values, kStreamedValues), 1, share);
  const int64_t teams = std::min(count, resident / team);
  return {Scope::kGrid, 0, kStreamThreads, static_cast<int>(team), static_cast<int>(teams)};
}

inline Plan make_plan(const Problem& problem, int device, int sm_count, bool has_clusters) {
  const Residency& held = residency(device, sm_count, has_clusters);
  Plan best = streaming_plan(problem, held.streaming);
  if (problem.clouds.dim > 3 || problem.dtype == DType::kFloat64) return best;
  float best_us = std::numeric_limits<float>::infinity();
  const int64_t count = problem.clouds.count;
  for (size_t i = 0; i < std::size(kTeams); ++i) {
    const TeamCost& t = kTeams[i];
    const int64_t team =
        t.team > 0 ? t.team : std::max<int64_t>(ceil_div(problem.max_length, t.capacity()), 1);
    const int64_t fit = t.scope == Scope::kCluster ? held.teams[i] : held.teams[i] / team;
    const bool too_many = t.scope != Scope::kGrid && count * team > kMaxGrid;
    if (team * t.capacity() < problem.max_length || fit == 0 || too_many) continue;
    const int64_t running = std::min(count, fit);
    const auto neighbours = static_cast<float>(ceil_div(running * team, sm_count) - 1);
    const float step_us = t.step_us + t.step_us_per_cta * static_cast<float>(team) +
                          neighbours * kNeighbourUs * static_cast<float>(t.capacity()) / 1024.f;
    const float us = static_cast<float>(ceil_div(count, fit)) * step_us;
    if (us < best_us) {
      best_us = us;
      best = {t.scope, t.points, t.threads, static_cast<int>(team), static_cast<int>(running)};
    }
  }
  return best;
}

}  // namespace fusedops::fps
