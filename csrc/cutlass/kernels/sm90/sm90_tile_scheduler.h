// The order in which a persistent grid walks output tiles, and how it shares out the last ones.
#pragma once

#include <algorithm>
#include <cstdint>

#include <cutlass/fast_math.h>

#include "csrc/cutlass/configs/stream_k_tail.h"

namespace fusedops::sm90 {

// Clusters of tiles, numbered band by band: a band is a few clusters wide along N and is walked
// down M. A wave of CTAs then covers a block of tiles that is about square, which shares operands
// in L2. Slices of K (split-K) come one after the other.
//
// Tiles from `whole` on are shared (stream_k_tail.h).
struct TileOrder {
  static constexpr int kGiven = 3;  // tiles that a CTA has by its number in any case

  int count;    // clusters of tiles in all slices
  int whole;    // of them, those that one cluster of CTAs has alone
  int k_steps;  // of a tile
  int helpers = 0, parts = 0, part_steps = 0;
  int band;  // clusters
  int last_band_begin;
  bool taken = false;  // but for the given ones: sm90_dynamic_scheduler.cuh
  cutlass::FastDivmod per_slice, per_band, width, last_width;
};

inline TileOrder make_tile_order(int clusters_m, int clusters_n, int slices, int k_steps,
                                 int band) {
  band = std::min(band, clusters_n);
  const int bands = (clusters_n - 1) / band;  // before the last one
  TileOrder order;
  order.count = order.whole = clusters_m * clusters_n * slices;
  order.k_steps = k_steps;
  order.band = band;
  order.last_band_begin = bands * band * clusters_m;
  order.per_slice = cutlass::FastDivmod(clusters_m * clusters_n);
  order.per_band = cutlass::FastDivmod(band * clusters_m);
  order.width = cutlass::FastDivmod(band);
  order.last_width = cutlass::FastDivmod(clusters_n - bands * band);
  return order;
}

inline void share_last_wave(TileOrder& order, int slots) {
  const int tiles = order.count % slots;
  const TileSharing sharing = share_tiles(tiles, slots, order.k_steps);
  if (sharing.helpers == 0) return;
  order.whole = order.count - tiles;
  order.helpers = int(sharing.helpers);
  order.parts = int(sharing.parts);
  order.part_steps = int(sharing.part_steps);
}

struct Tile {
  int m, n, slice;  // in tiles
};

// Steps [begin, end) of a tile's K.
struct Work {
  Tile tile;
  int begin, end;
  int part;  // a helper's, of all parts, or the first one of the tile that an owner has
};

#ifdef __CUDACC__

// The tile of this CTA when its cluster has this one.
__device__ __forceinline__ Tile tile_at(const TileOrder& order, int cluster_m, int cluster_n,
                                        int index) {
  int slice, in_slice, band, in_band, m, n;
  order.per_slice(slice, in_slice, index);
  order.per_band(band, in_band, in_slice);
  (in_slice >= order.last_band_begin ? order.last_width : order.width)(m, n, in_band);
  n += band * order.band;
  const int rank = blockIdx.x % (cluster_m * cluster_n);
  return {m * cluster_m + (cluster_m > 1 ? rank : 0), n * cluster_n + (cluster_n > 1 ? rank : 0),
          slice};
}

// Where CTAs do not take tiles.
struct NoTileQueue {};

// The work of one cluster of CTAs: tile after tile, a grid apart. Indices from `whole` on stand for
// its turns with shared tiles.
class TileWalk {
 public:
  __device__ TileWalk(const TileOrder& order, NoTileQueue, int cluster_m, int cluster_n)
      : order_(order),
        cluster_m_(cluster_m),
        cluster_n_(cluster_n),
        step_(gridDim.x / (cluster_m * cluster_n)),
        index_(cluster()),
        end_(order.whole) {
    if (shared() == 0) return;
    if (helps()) {
      end_ += (shared() * order.parts - 1 - cluster() + order.helpers) / order.helpers * step_;
    } else if (cluster() >= first_owner()) {
      end_ += step_;
    }
  }

  __device__ bool valid() const { return index_ < end_; }
  // Whether nothing comes after this.
  __device__ bool last() const { return index_ + step_ >= end_; }
  __device__ void next() { index_ += step_; }
  // Whether this has the last steps of its tile.
  __device__ bool ends_tile() const { return index_ < order_.whole || !helps(); }
  __device__ int steps() const {
    if (index_ < order_.whole) return order_.k_steps;
    return helps() ? order_.part_steps : order_.k_steps - order_.parts * order_.part_steps;
  }
  __device__ Work work() const {
    int index = index_, begin = 0, end = order_.k_steps, part = 0;
    if (index_ >= order_.whole) {
      const int parts = order_.parts;
      if (helps()) {
        part = cluster() + (index_ - order_.whole) / step_ * order_.helpers;
        index = order_.whole + part / parts;
        begin = part % parts * order_.part_steps;
        end = begin + order_.part_steps;
      } else {
        const int owned = cluster() - first_owner();
        part = owned * parts;
        index = order_.whole + owned;
        begin = parts * order_.part_steps;
      }
    }
    return {tile_at(order_, cluster_m_, cluster_n_, index), begin, end, part};
  }

 private:
  __device__ int cluster() const { return blockIdx.x / (cluster_m_ * cluster_n_); }
  __device__ int shared() const { return order_.count - order_.whole; }
  __device__ bool helps() const { return cluster() < order_.helpers; }
  __device__ int first_owner() const { return step_ - shared(); }

  const TileOrder& order_;
  int cluster_m_, cluster_n_, step_, index_, end_;
};

#endif

}  // namespace fusedops::sm90
