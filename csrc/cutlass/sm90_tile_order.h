// The order in which a persistent grid walks output tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cutlass/fast_math.h"

namespace fusedops::sm90 {

// Clusters of tiles, numbered band by band: a band is a few clusters wide along N and is walked
// down M. A wave of CTAs then covers a block of tiles that is about square, which shares operands
// in L2. Slices of K (split-K) come one after the other.
struct TileOrder {
  int count;  // clusters of tiles in all slices
  int band;   // clusters
  int last_band_begin;
  cutlass::FastDivmod per_slice, per_band, width, last_width;
};

inline TileOrder make_tile_order(int clusters_m, int clusters_n, int slices, int band) {
  band = std::min(band, clusters_n);
  const int bands = (clusters_n - 1) / band;  // before the last one
  TileOrder order;
  order.count = clusters_m * clusters_n * slices;
  order.band = band;
  order.last_band_begin = bands * band * clusters_m;
  order.per_slice = cutlass::FastDivmod(clusters_m * clusters_n);
  order.per_band = cutlass::FastDivmod(band * clusters_m);
  order.width = cutlass::FastDivmod(band);
  order.last_width = cutlass::FastDivmod(clusters_n - bands * band);
  return order;
}

struct Tile {
  int m, n, slice;  // in tiles
};

#ifdef __CUDACC__

class TileWalk {
 public:
  __device__ TileWalk(const TileOrder& order, int cluster_m, int cluster_n)
      : order_(order),
        cluster_m_(cluster_m),
        cluster_n_(cluster_n),
        step_(gridDim.x / (cluster_m * cluster_n)),
        index_(blockIdx.x / (cluster_m * cluster_n)) {}

  // Whether there is a tile `ahead` tiles of this CTA further on.
  __device__ bool valid(int ahead = 0) const { return index_ + ahead * step_ < order_.count; }
  __device__ void next(int tiles) { index_ += tiles * step_; }

  __device__ Tile tile() const {
    int slice, in_slice, band, in_band, m, n;
    order_.per_slice(slice, in_slice, index_);
    order_.per_band(band, in_band, in_slice);
    (in_slice >= order_.last_band_begin ? order_.last_width : order_.width)(m, n, in_band);
    n += band * order_.band;
    const int rank = blockIdx.x % (cluster_m_ * cluster_n_);
    return {m * cluster_m_ + (cluster_m_ > 1 ? rank : 0),
            n * cluster_n_ + (cluster_n_ > 1 ? rank : 0), slice};
  }

 private:
  const TileOrder& order_;
  int cluster_m_, cluster_n_, step_, index_;
};

#endif

}  // namespace fusedops::sm90
