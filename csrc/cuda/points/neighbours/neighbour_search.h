// Host side of the searches that k-NN and ball query share. Each fills every row of the output.
#pragma once

#include <limits>

#include "csrc/common/checks/neighbours_check.h"
#include "csrc/cuda/points/index/point_grid.h"

namespace fusedops::cuda {

// The tensors of an answer; counts and distance may stay undefined.
struct Neighbours {
  Tensor index;                  // (rows..., k)
  Tensor distance;               // (rows..., k), float32 or float64
  std::optional<Tensor> counts;  // (rows...)
  bool pad_first = false;
};

// The answer where no cloud has any query, whatever the rows.
inline void fill_without_clouds(const Neighbours& out) {
  Tensor index = out.index, distance = out.distance;
  torch::stable::fill_(index, -1);
  torch::stable::fill_(distance, std::numeric_limits<double>::infinity());
  if (!out.counts) return;
  Tensor counts = *out.counts;
  torch::stable::zero_(counts);
}

// The nearest k within the query's bound, by comparing every pair.
void search_brute(const LaunchScope& scope, const NeighbourTensors& in, const NeighbourQuery& query,
                  const Neighbours& out);

// Any selection, through the index: in.grid or one that is built here.
void search_grid(const LaunchScope& scope, const NeighbourTensors& in, const NeighbourQuery& query,
                 const Neighbours& out);

// k-NN by Tensor Cores; whether they can serve this search.
bool can_search_features(const LaunchScope& scope, const NeighbourTensors& in, int64_t k,
                         int64_t norm);
void search_features(const LaunchScope& scope, const NeighbourTensors& in,
                     const NeighbourQuery& query, const Neighbours& out);

// The choice for NeighbourAlgorithm::kAuto in low dimensions, from sizes alone.
bool prefers_grid(const NeighbourTensors& in, int64_t k);

}  // namespace fusedops::cuda
