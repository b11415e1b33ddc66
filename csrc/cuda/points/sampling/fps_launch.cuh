// Launches of furthest point sampling.
#pragma once

#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/sampling/farthest_point_sample.cuh"
#include "csrc/cuda/points/sampling/fps_stream.cuh"

namespace fusedops::fps {

// What a cloud is worked on by.
struct Plan {
  Scope scope;
  int points;   // per thread; 0: streamed
  int threads;  // per CTA
  int team;     // CTAs per cloud
  int teams;    // that run at a time; a grid's teams take one cloud after the other
};

using PointCounts = Choices<2, 4, 8, 16, 24>;
using Scopes = Choices<Scope::kWarps, Scope::kBlock, Scope::kCluster, Scope::kGrid>;

inline size_t shared_bytes(const Plan& plan) {
  return sizeof(float4) * static_cast<size_t>(plan.points) * static_cast<size_t>(plan.threads);
}

inline size_t record_count(const Plan& plan) {
  return plan.scope == Scope::kGrid ? size_t{2} * plan.team * plan.teams : 0;
}

// A cluster, or a grid of which every CTA is resident, as launch attributes.
struct LaunchConfig {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute{};

  LaunchConfig(const Plan& plan, int64_t clouds, cudaStream_t stream) {
    const int64_t teams = plan.scope == Scope::kGrid ? plan.teams : clouds;
    config.gridDim = dim3(static_cast<unsigned>(teams * plan.team));
    config.blockDim = dim3(static_cast<unsigned>(plan.threads));
    config.dynamicSmemBytes = shared_bytes(plan);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = plan.team > 1 ? 1 : 0;
    if (plan.scope == Scope::kCluster) {
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(plan.team), 1, 1};
    } else {
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

// Calls fn with the kernel of a resident plan, ready to launch.
template <typename Fn>
decltype(auto) with_kernel(const Plan& plan, Fn&& fn) {
  return dispatch(PointCounts{}, plan.points, [&]<int kPoints>(Tag<kPoints>) {
    return dispatch(Scopes{}, plan.scope, [&]<Scope kScope>(Tag<kScope>) {
      constexpr auto kernel = &fps_resident_kernel<kPoints, kScope>;
      allow_any_shared_memory<kernel>();
      if (kScope == Scope::kCluster && plan.team > 8) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
      }
      return fn(kernel);
    });
  });
}

inline cudaError_t launch_resident(const Problem& problem, const Plan& plan, GridRecord* records,
                                   cudaStream_t stream) {
  return with_kernel(plan, [&](auto kernel) {
    const LaunchConfig launch(plan, problem.clouds.count, stream);
    return cudaLaunchKernelEx(&launch.config, kernel, problem, static_cast<uint32_t>(plan.team),
                              records);
  });
}

inline void launch_first(const Problem& problem, cudaStream_t stream) {
  constexpr int kThreads = 128;
  first_samples_kernel<<<static_cast<unsigned>(ceil_div(problem.clouds.count, kThreads)), kThreads,
                         0, stream>>>(problem);
}

// Values of a streamed plan's workspace.
inline int64_t workspace_values(const Problem& problem, const Plan& plan) {
  const int64_t dim = problem.clouds.dim;
  const int64_t chosen = dim > kStagedDims ? dim * plan.team * plan.teams : 0;
  return problem.clouds.num_rows() * (dim + 1) + chosen;
}

template <class T>
cudaError_t launch_stream(const Problem& problem, const Plan& plan, GridRecord* records,
                          T* workspace, cudaStream_t stream) {
  LaunchConfig launch(plan, problem.clouds.count, stream);
  launch.config.dynamicSmemBytes = sizeof(T) * std::min(problem.clouds.dim, kStagedDims);
  return cudaLaunchKernelEx(&launch.config, &fps_stream_kernel<T>, problem,
                            static_cast<uint32_t>(plan.team), records, workspace);
}

}  // namespace fusedops::fps
