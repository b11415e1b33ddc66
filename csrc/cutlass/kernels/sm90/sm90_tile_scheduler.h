// The scheduler of a persistent grid: the order in which it walks output tiles, and how it shares
// out the last ones (stream-K).
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
// Tiles from `whole` on are the stream-K tail (stream_k_tail.h).
struct TileSchedule {
  static constexpr int kGiven = 3;  // tiles that a CTA has by its number in any case

  int count;    // clusters of tiles in all slices
  int whole;    // of them, those that one cluster of CTAs has alone
  int k_steps;  // of a tile
  int helpers = 0, parts = 0, part_steps = 0;
  int raster_width;  // in clusters
  int last_band_begin;
  bool dynamic = false;  // but for the given ones: sm90_dynamic_scheduler.cuh
  cutlass::FastDivmod per_slice, per_band, width, last_width;
};

inline TileSchedule make_tile_schedule(int clusters_m, int clusters_n, int slices, int k_steps,
                                       int raster_width) {
  raster_width = std::min(raster_width, clusters_n);
  const int bands = (clusters_n - 1) / raster_width;  // before the last one
  TileSchedule schedule;
  schedule.count = schedule.whole = clusters_m * clusters_n * slices;
  schedule.k_steps = k_steps;
  schedule.raster_width = raster_width;
  schedule.last_band_begin = bands * raster_width * clusters_m;
  schedule.per_slice = cutlass::FastDivmod(clusters_m * clusters_n);
  schedule.per_band = cutlass::FastDivmod(raster_width * clusters_m);
  schedule.width = cutlass::FastDivmod(raster_width);
  schedule.last_width = cutlass::FastDivmod(clusters_n - bands * raster_width);
  return schedule;
}

inline void add_stream_k_tail(TileSchedule& schedule, int slots) {
  const int tiles = schedule.count % slots;
  const StreamKTail tail = stream_k_tail(tiles, slots, schedule.k_steps);
  if (tail.helpers == 0) return;
  schedule.whole = schedule.count - tiles;
  schedule.helpers = int(tail.helpers);
  schedule.parts = int(tail.parts);
  schedule.part_steps = int(tail.part_steps);
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
__device__ __forceinline__ Tile tile_at(const TileSchedule& schedule, int cluster_m, int cluster_n,
                                        int index) {
  int slice, in_slice, band, in_band, m, n;
  schedule.per_slice(slice, in_slice, index);
  schedule.per_band(band, in_band, in_slice);
  (in_slice >= schedule.last_band_begin ? schedule.last_width : schedule.width)(m, n, in_band);
  n += band * schedule.raster_width;
  const int rank = blockIdx.x % (cluster_m * cluster_n);
  return {m * cluster_m + (cluster_m > 1 ? rank : 0), n * cluster_n + (cluster_n > 1 ? rank : 0),
          slice};
}

// Stands for the queue where the schedule is not dynamic.
struct NoTileQueue {};

// The work of one cluster of CTAs: tile after tile, a grid apart. Indices from `whole` on stand for
// its turns with shared tiles.
class TileScheduler {
 public:
  __device__ TileScheduler(const TileSchedule& schedule, NoTileQueue, int cluster_m, int cluster_n)
      : schedule_(schedule),
        cluster_m_(cluster_m),
        cluster_n_(cluster_n),
        step_(gridDim.x / (cluster_m * cluster_n)),
        index_(cluster()),
        end_(schedule.whole) {
    if (shared() == 0) return;
    if (helps()) {
      end_ +=
          (shared() * schedule.parts - 1 - cluster() + schedule.helpers) / schedule.helpers * step_;
    } else if (cluster() >= first_owner()) {
      end_ += step_;
    }
  }

  __device__ bool valid() const { return index_ < end_; }
  // Whether this work is the cluster's last.
  __device__ bool last() const { return index_ + step_ >= end_; }
  __device__ void next() { index_ += step_; }
  // Whether this work has the last steps of its tile.
  __device__ bool ends_tile() const { return index_ < schedule_.whole || !helps(); }
  __device__ int steps() const {
    if (index_ < schedule_.whole) return schedule_.k_steps;
    return helps() ? schedule_.part_steps
                   : schedule_.k_steps - schedule_.parts * schedule_.part_steps;
  }
  __device__ Work work() const {
    int index = index_, begin = 0, end = schedule_.k_steps, part = 0;
    if (index_ >= schedule_.whole) {
      const int parts = schedule_.parts;
      if (helps()) {
        part = cluster() + (index_ - schedule_.whole) / step_ * schedule_.helpers;
        index = schedule_.whole + part / parts;
        begin = part % parts * schedule_.part_steps;
        end = begin + schedule_.part_steps;
      } else {
        const int owned = cluster() - first_owner();
        part = owned * parts;
        index = schedule_.whole + owned;
        begin = parts * schedule_.part_steps;
      }
    }
    return {tile_at(schedule_, cluster_m_, cluster_n_, index), begin, end, part};
  }

 private:
  __device__ int cluster() const { return blockIdx.x / (cluster_m_ * cluster_n_); }
  __device__ int shared() const { return schedule_.count - schedule_.whole; }
  __device__ bool helps() const { return cluster() < schedule_.helpers; }
  __device__ int first_owner() const { return step_ - shared(); }

  const TileSchedule& schedule_;
  int cluster_m_, cluster_n_, step_, index_, end_;
};

#endif

}  // namespace fusedops::sm90
