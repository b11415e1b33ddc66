// One layer over the edges of points among themselves (EdgeConv): y = u_j + v_i of edge (i, k),
// j = idx[i, k]. v_i is the same for a group, so its maximum is that of the u_j; the gradient of a
// maximum belongs to one edge, and what batch statistics add to an edge's, A + B y, has sums in
// closed form (set_abstraction.md, part 5). No row of an edge exists, forward or backward.
//
// kLanes lanes take a point, 4 channels each: 16 bytes of float32 a load, several edges in flight.
// Blocks (x, s) take channels 4 kLanes s and on.
#pragma once

#include "csrc/common/device/vec.cuh"
#include "csrc/cuda/points/edges/edge_norm.cuh"
#include "csrc/cuda/points/edges/edge_rows.cuh"

namespace fusedops {

inline constexpr int kEdgeConvThreads = 256;
inline constexpr int kEdgeConvVector = 4;  // channels of a lane
inline constexpr int kEdgeConvUnroll = 8;  // edges in flight
inline constexpr int kEdgeConvLong = 256;  // edges to a point that are worth a whole block

struct EdgeConvProblem {
  const int64_t* idx;  // [points][k], of rows of a cloud
  int64_t points;      // of all clouds
  int n, k;
  int channels;  // a multiple of 8
  int width;     // of affine and winners: 4 kLanes * gridDim.y

  __device__ __forceinline__ int64_t pitch() const { return 2 * int64_t{channels}; }
  // The row of entry `at` of a point, -1 where it is none.
  __device__ __forceinline__ int row_of(int64_t point, int at) const {
    if (point >= points || at >= k) return -1;
    const int64_t j = __ldg(idx + point * k + at);
    const bool valid = static_cast<uint64_t>(j) < static_cast<uint64_t>(n);
    return valid ? static_cast<int>(point / n * n + j) : -1;
  }
};

// Where a thread is.
template <int kLanes>
struct EdgeConvPlace {
  static constexpr int kPoints = kEdgeConvThreads / kLanes;  // of a block at a time
  static constexpr int kColumns = kLanes * kEdgeConvVector;

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ __forceinline__ int point() { return static_cast<int>(threadIdx.x) / kLanes; }
  static __device__ __forceinline__ int channel() {
    return static_cast<int>(blockIdx.y) * kColumns + lane() * kEdgeConvVector;
  }
  // What lane t of the point has.
  static __device__ __forceinline__ int share(int value, int t) {
    return __shfl_sync(kAllLanes, value, lane_id() / kLanes * kLanes + t);
  }
};

template <class T>
struct EdgeConvForward {
  EdgeConvProblem problem;
  float* products;       // [points][2 channels]: u, then v + u, which becomes v unless `infers`
  const float2* affine;  // [width]
  float slope;
  T* out;          // [points][channels]: act(scale y + shift), 0 for an empty group; or null
  float* best;     // [points][channels]: max sign(scale) y; or null
  int16_t* which;  // likewise: the first neighbour that has it, -1 in an empty group
  float* totals;   // [points][channels]: the sum of y; null without sums
  float* sums;     // [grid.x][2 width + 1]: means, squared distances to them, the count; or null
};

// What a thread knows of its channels' statistics: sums of y - pivot, where pivot is the first y.
struct EdgeConvSums {
  float pivot[kEdgeConvVector] = {}, first[kEdgeConvVector] = {}, second[kEdgeConvVector] = {};
  int count = 0;
};

// The maxima of a group.
struct EdgeConvMaxima {
  float best[kEdgeConvVector];
  int which[kEdgeConvVector];
  float total[kEdgeConvVector];  // of y - pivot
  int count = 0, opening = -1;   // edges; the place of the first one

  __device__ __forceinline__ EdgeConvMaxima() {
#pragma unroll
    for (int v = 0; v < kEdgeConvVector; ++v) best[v] = -INFINITY, which[v] = -1, total[v] = 0.f;
  }

  // sign: of the scale, 0 for 0, where all values tie.
  template <bool kWhich>
  __device__ __forceinline__ void add(const float (&u)[4], const float (&sign)[4], int place) {
#pragma unroll
    for (int v = 0; v < kEdgeConvVector; ++v) {
      const float probe = fmaf(u[v], sign[v], 0.f);  // never -0
      const float larger = max_or_nan(best[v], probe);
      // NOTE: NaN has one form: a first NaN changes bits, others do not.
      if (kWhich && __float_as_int(larger) != __float_as_int(best[v])) which[v] = place;
      best[v] = larger;
    }
    if (count == 0) opening = place;
    ++count;
  }
};

// A block's sums of its threads', in their order.
template <int kLanes>
__device__ __forceinline__ void write_conv_sums(const EdgeConvSums& own, const float (&sign)[4],
                                                int width, float* to) {
  using Place = EdgeConvPlace<kLanes>;
  __shared__ float means[kEdgeConvThreads][kEdgeConvVector];
  __shared__ float squares[kEdgeConvThreads][kEdgeConvVector];
  __shared__ int counts[Place::kPoints];
  const float n = static_cast<float>(own.count > 0 ? own.count : 1);
#pragma unroll
  for (int v = 0; v < kEdgeConvVector; ++v) {
    const float rest = own.second[v] - own.first[v] * (own.first[v] / n);
    means[threadIdx.x][v] = own.pivot[v] + own.first[v] / n;
    squares[threadIdx.x][v] = rest < 0.f ? 0.f : rest;  // NaN stays
  }
  if (Place::lane() == 0) counts[Place::point()] = own.count;
  __syncthreads();
  if (threadIdx.x >= kLanes) return;
#pragma unroll 1
  for (int v = 0; v < kEdgeConvVector; ++v) {
    double all = 0, mean = 0, square = 0;
    for (int p = 0; p < Place::kPoints; ++p) {
      if (counts[p] == 0) continue;
      const int at = p * kLanes + static_cast<int>(threadIdx.x);
      const double more = counts[p], distance = means[at][v] - mean;
      square += squares[at][v] + distance * distance * all * more / (all + more);
      all += more;
      mean += distance * more / all;
    }
    const int channel = Place::channel() + v;
    to[channel] = static_cast<float>(sign[v] < 0.f ? -mean : mean);
    to[width + channel] = static_cast<float>(square);
    if (channel == 0) to[2 * width] = static_cast<float>(all);
  }
}

template <class T, int kLanes, bool kWhich, bool kSums>
__global__ void __launch_bounds__(kEdgeConvThreads, 2)
    edge_conv_forward_kernel(const __grid_constant__ EdgeConvForward<T> a) {
  using Place = EdgeConvPlace<kLanes>;
  constexpr int kV = kEdgeConvVector, kU = kEdgeConvUnroll;
  const EdgeConvProblem& p = a.problem;
  const int channel = Place::channel(), lane = Place::lane();
  const bool live = channel < p.channels;
  float2 affine[kV];
  float sign[kV];
#pragma unroll
  for (int v = 0; v < kV; ++v) {
    affine[v] = __ldg(a.affine + channel + v);
    sign[v] = affine[v].x < 0.f ? -1.f : affine[v].x == 0.f ? 0.f : 1.f;
  }
  EdgeConvSums sums;
  for (int64_t first = int64_t{blockIdx.x} * Place::kPoints; first < p.points;
       first += int64_t{gridDim.x} * Place::kPoints) {
    const int64_t point = first + Place::point();
    const bool exists = live && point < p.points;
    float* own = a.products + point * p.pitch() + channel;
    float of_group[kV] = {}, shift[kV] = {};
    if (exists) {
      const float4 u = *reinterpret_cast<const float4*>(own);
      const float4 w = *reinterpret_cast<const float4*>(own + p.channels);
      of_group[0] = w.x - u.x, of_group[1] = w.y - u.y;
      of_group[2] = w.z - u.z, of_group[3] = w.w - u.w;
      if constexpr (kSums) {
        float4* to = reinterpret_cast<float4*>(own + p.channels);
        *to = {of_group[0], of_group[1], of_group[2], of_group[3]};
#pragma unroll
        for (int v = 0; v < kV; ++v) shift[v] = of_group[v] - sums.pivot[v];
      }
    }
    EdgeConvMaxima found;
    for (int start = 0; start < p.k; start += kLanes) {
      const int mine = p.row_of(point, start + lane), end = min(kLanes, p.k - start);
      for (int t = 0; t < end; t += kU) {
        int row[kU];
        float4 values[kU];
#pragma unroll
        for (int i = 0; i < kU; ++i) {
          row[i] = Place::share(mine, t + i);
          values[i] = {};
          if (live && row[i] >= 0) {
            const float* from = a.products + row[i] * p.pitch() + channel;
            values[i] = __ldg(reinterpret_cast<const float4*>(from));
          }
        }
#pragma unroll
        for (int i = 0; i < kU; ++i) {
          if (row[i] < 0) continue;
          const float u[kV] = {values[i].x, values[i].y, values[i].z, values[i].w};
          if (kSums && sums.count + found.count == 0) {
#pragma unroll
            for (int v = 0; v < kV; ++v) {
              sums.pivot[v] = u[v] + of_group[v];
              shift[v] = of_group[v] - sums.pivot[v];
            }
          }
          found.template add<kWhich>(u, sign, start + t + i);
          if constexpr (kSums) {
#pragma unroll
            for (int v = 0; v < kV; ++v) {
              const float y = u[v] + shift[v];
              found.total[v] += y;
              sums.second[v] = fmaf(y, y, sums.second[v]);
            }
          }
        }
      }
    }
    if (exists) {
      const int64_t to = point * p.channels + channel;
      const bool empty = found.count == 0;
      float y[kV];
#pragma unroll
      for (int v = 0; v < kV; ++v) {
        float u = found.best[v] * sign[v];
        if (kWhich && !empty) {
          // NOTE: where nothing beats -Inf, it is the first one's.
          if (found.which[v] < 0) found.which[v] = found.opening;
          if (sign[v] == 0.f) {
            u = a.products[p.row_of(point, found.which[v]) * p.pitch() + channel + v];
          }
        }
        y[v] = u + of_group[v];
      }
      if constexpr (kWhich) {
        float best[kV];
        short which[kV];
#pragma unroll
        for (int v = 0; v < kV; ++v) {
          best[v] = empty ? 0.f : probe_sign(affine[v].x) * y[v];
          which[v] = static_cast<short>(empty ? -1 : found.which[v]);
        }
        *reinterpret_cast<float4*>(a.best + to) = {best[0], best[1], best[2], best[3]};
        *reinterpret_cast<short4*>(a.which + to) = {which[0], which[1], which[2], which[3]};
      } else {
        Vec<T, kV> out;
#pragma unroll
        for (int v = 0; v < kV; ++v) {
          const float z = fmaf(y[v], affine[v].x, affine[v].y);
          const float value = z < 0.f ? (a.slope == 0.f ? 0.f : a.slope * z) : z;
          out.value[v] = from_compute<T>(empty ? 0.f : value);
        }
        *reinterpret_cast<Vec<T, kV>*>(a.out + to) = out;
      }
      if constexpr (kSums) {
        const float n = static_cast<float>(found.count);
        float total[kV];
#pragma unroll
        for (int v = 0; v < kV; ++v) {
          total[v] = empty ? 0.f : fmaf(n, sums.pivot[v], found.total[v]);
          sums.first[v] += found.total[v];
        }
        *reinterpret_cast<float4*>(a.totals + to) = {total[0], total[1], total[2], total[3]};
      }
    }
    sums.count += found.count;
  }
  if constexpr (kSums) {
    write_conv_sums<kLanes>(sums, sign, p.width, a.sums + int64_t{blockIdx.x} * (2 * p.width + 1));
  }
}

template <class T>
struct EdgeConvBackward {
  EdgeConvProblem problem;
  const float* products;    // u and v, as forward left them; not read without `dense`
  const int* winners;       // [points][width], of edge_pool_backward
  const float* totals;      // [points][channels], likewise not read
  const uint32_t* entries;  // those of idx by the row that they name (edge_lists)
  const uint2* ranges;      // [points]
  const float2* dense;      // [width]: (A, B), or null
  T* out;                   // [points][2 channels]: the gradients of the products
  bool* used;               // [points]: whether a point is in an edge
};

// Sums over edges to a point: of their maxima's gradients, and of their groups' v.
struct EdgeConvInto {
  float won[kEdgeConvVector], others[kEdgeConvVector];
};

// A winner's gradient, and 0 where its neighbour is another one.
template <class T>
__device__ __forceinline__ float won_by(int winner, int place) {
  const float value = unpack_pair<T>(static_cast<uint32_t>(winner)).x;
  return winner >> 16 == place ? value : 0.f;
}

// Adds entries begin, begin + stride, ... of the lists; `steps`: as many for all points of a warp.
template <class T, int kLanes>
__device__ __forceinline__ void add_list(const EdgeConvBackward<T>& a, int channel, bool live,
                                         int64_t begin, int64_t end, int stride, int steps,
                                         EdgeConvInto& into) {
  using Place = EdgeConvPlace<kLanes>;
  constexpr int kU = 4;
  const EdgeConvProblem& p = a.problem;
  const auto k = static_cast<uint32_t>(p.k);
  for (int start = 0; start < steps; start += kLanes) {
    const int64_t at = begin + int64_t{start + Place::lane()} * stride;
    const uint32_t entry = at < end ? __ldg(a.entries + at) : 0;
    const int mine = at < end ? static_cast<int>(entry / k) : -1;
    const int my_place = static_cast<int>(entry % k);
    const int count = min(kLanes, steps - start);
    for (int t = 0; t < count; t += kU) {
      int row[kU], place[kU];
      int4 winners[kU];
      float4 others[kU];
#pragma unroll
      for (int i = 0; i < kU; ++i) {
        row[i] = Place::share(mine, t + i);
        place[i] = Place::share(my_place, t + i);
        winners[i] = {-1, -1, -1, -1};
        others[i] = {};
        if (!live || row[i] < 0) continue;
        const int* from = a.winners + int64_t{row[i]} * p.width + channel;
        winners[i] = __ldg(reinterpret_cast<const int4*>(from));
        if (!a.dense) continue;
        const float* v = a.products + row[i] * p.pitch() + p.channels + channel;
        others[i] = __ldg(reinterpret_cast<const float4*>(v));
      }
#pragma unroll
      for (int i = 0; i < kU; ++i) {
        into.won[0] += won_by<T>(winners[i].x, place[i]);
        into.won[1] += won_by<T>(winners[i].y, place[i]);
        into.won[2] += won_by<T>(winners[i].z, place[i]);
        into.won[3] += won_by<T>(winners[i].w, place[i]);
        into.others[0] += others[i].x;
        into.others[1] += others[i].y;
        into.others[2] += others[i].z;
        into.others[3] += others[i].w;
      }
    }
  }
}

// The gradients of a point's products, from the sums over the edges to it, `count` of them, and
// over those of its group.
template <class T, int kLanes>
__device__ __forceinline__ void write_gradients(const EdgeConvBackward<T>& a, int64_t point,
                                                int channel, int count, int neighbours,
                                                const EdgeConvInto& into) {
  constexpr int kV = kEdgeConvVector;
  const EdgeConvProblem& p = a.problem;
  const int4 won = __ldg(reinterpret_cast<const int4*>(a.winners + point * p.width + channel));
  const int winner[kV] = {won.x, won.y, won.z, won.w};
  float du[kV], dv[kV];
#pragma unroll
  for (int v = 0; v < kV; ++v) {
    du[v] = into.won[v];
    dv[v] = unpack_pair<T>(static_cast<uint32_t>(winner[v])).x;
  }
  if (a.dense) {
    const float4 u = *reinterpret_cast<const float4*>(a.products + point * p.pitch() + channel);
    const float4 y = *reinterpret_cast<const float4*>(a.totals + point * p.channels + channel);
    const float us[kV] = {u.x, u.y, u.z, u.w}, ys[kV] = {y.x, y.y, y.z, y.w};
    const float edges = static_cast<float>(count), group = static_cast<float>(neighbours);
#pragma unroll
    for (int v = 0; v < kV; ++v) {
      const float2 ab = __ldg(a.dense + channel + v);
      // NOTE: a point without edges may hold anything, even NaN.
      if (count > 0) du[v] += fmaf(edges, ab.x, ab.y * fmaf(edges, us[v], into.others[v]));
      if (neighbours > 0) dv[v] += fmaf(group, ab.x, ab.y * ys[v]);
    }
  }
  Vec<T, kV> of_u, of_v;
#pragma unroll
  for (int v = 0; v < kV; ++v) {
    of_u.value[v] = from_compute<T>(du[v] - dv[v]);
    of_v.value[v] = from_compute<T>(dv[v]);
  }
  T* to = a.out + point * p.pitch() + channel;
  *reinterpret_cast<Vec<T, kV>*>(to) = of_u;
  *reinterpret_cast<Vec<T, kV>*>(to + p.channels) = of_v;
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kEdgeConvThreads)
    edge_conv_backward_kernel(const __grid_constant__ EdgeConvBackward<T> a) {
  using Place = EdgeConvPlace<kLanes>;
  __shared__ uint2 lists[Place::kPoints];
  __shared__ int groups[Place::kPoints];
  __shared__ EdgeConvInto parts[kEdgeConvThreads];
  const EdgeConvProblem& p = a.problem;
  const int channel = Place::channel(), lane = Place::lane(), own = Place::point();
  const bool live = channel < p.channels;
  const int64_t first = int64_t{blockIdx.x} * Place::kPoints, point = first + own;
  const bool exists = point < p.points;
  const uint2 range = exists ? a.ranges[point] : uint2{0, 0};
  const int count = static_cast<int>(range.y - range.x);
  int neighbours = 0;
  for (int start = 0; start < p.k; start += kLanes) {
    const unsigned bits = __ballot_sync(kAllLanes, p.row_of(point, start + lane) >= 0);
    const unsigned ours = kLanes == 32 ? bits : bits >> lane_id() / kLanes * kLanes & 0xffffu;
    neighbours += __popc(ours);
  }
  if (lane == 0) {
    lists[own] = range;
    groups[own] = neighbours;
    if (exists && blockIdx.y == 0) a.used[point] = count > 0 || neighbours > 0;
  }
  const bool is_long = count > kEdgeConvLong;
  int steps = is_long ? 0 : count;
  if constexpr (kLanes < 32) steps = max(steps, __shfl_xor_sync(kAllLanes, steps, kLanes));
  EdgeConvInto into{};
  add_list<T, kLanes>(a, channel, live, range.x, is_long ? range.x : range.y, 1, steps, into);
  if (exists && live && !is_long) {
    write_gradients<T, kLanes>(a, point, channel, count, neighbours, into);
  }
  __syncthreads();
  for (int r = 0; r < Place::kPoints; ++r) {
    const uint2 list = lists[r];
    const int all = static_cast<int>(list.y - list.x);
    if (all <= kEdgeConvLong) continue;
    EdgeConvInto part{};
    add_list<T, kLanes>(a, channel, live, int64_t{list.x} + own, list.y, Place::kPoints,
                        ceil_div(all, Place::kPoints), part);
    parts[threadIdx.x] = part;
    __syncthreads();
    if (own == 0 && live) {
      for (int g = 1; g < Place::kPoints; ++g) {
        const EdgeConvInto& other = parts[g * kLanes + lane];
#pragma unroll
        for (int v = 0; v < kEdgeConvVector; ++v) {
          part.won[v] += other.won[v];
          part.others[v] += other.others[v];
        }
      }
      write_gradients<T, kLanes>(a, first + r, channel, all, groups[r], part);
    }
    __syncthreads();
  }
}

}  // namespace fusedops
