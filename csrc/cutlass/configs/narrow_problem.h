// The gradients of a linear layer of few features as one problem (sm90_narrow.cuh), and how its
// blocks share it. Plain structs; no torch, no CUDA header.
#pragma once

#include <algorithm>

#include "csrc/common/activation.h"
#include "csrc/common/dtype.h"
#include "csrc/common/int_math.h"

namespace fusedops::narrow {

inline constexpr int kTileRows = 64;
inline constexpr int kBoxFeatures = 64;  // 128 bytes
inline constexpr int64_t kMinFeatures = 16, kMaxFeatures = 256;

struct Backward {
  DType dtype;
  Activation activation;
  int64_t m, n, k;
  const void *dy, *saved, *x, *weight;  // (m, n), the same or null, (m, k), (n, k)
  int64_t dy_ld, saved_ld, x_ld, weight_ld;
  void* dx;                  // (m, k) contiguous, or null: not wanted; so are the others
  void* dweight;             // (n, k)
  void* dbias;               // (n,)
  bool fp32_sums;            // dweight and dbias in fp32 instead of dtype
  float* partial = nullptr;  // workspace of partial_floats()

  // A block's sums: those of dweight, then those of dbias.
  int64_t width() const { return (dweight ? n * k : 0) + (dbias ? n : 0); }
};

// Blocks of `chunks` share a slot: the same rows, each its own features of x.
struct Plan {
  int n_boxes, k_boxes;  // of n, and of k to a block
  int chunks, slots;
};

constexpr int blocks_per_sm(int n_boxes, int k_boxes) { return n_boxes * k_boxes <= 2 ? 2 : 1; }

inline Plan plan_of(const Backward& p, int sm_count) {
  Plan plan{};
  plan.n_boxes = p.n <= 64 ? 1 : p.n <= 128 ? 2 : 4;
  plan.k_boxes = p.k <= 64 ? 1 : 2;
  plan.chunks = int(ceil_div(p.k, 2 * kBoxFeatures));
  const int blocks = sm_count * blocks_per_sm(plan.n_boxes, plan.k_boxes);
  plan.slots = int(std::min<int64_t>(std::max(blocks / plan.chunks, 1), ceil_div(p.m, kTileRows)));
  return plan;
}

inline int64_t partial_floats(const Backward& p, int sm_count) {
  return plan_of(p, sm_count).slots * p.width();
}

}  // namespace fusedops::narrow
