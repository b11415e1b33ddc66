// Host face of loss_rows.cuh: raw pointers, sizes and a stream. Each function launches and returns
// null or the reason of the failure. C: the compute type of dtype.
#pragma once

#include "csrc/common/loss_options.h"
#include "csrc/cutlass/problem.h"

namespace fusedops {

struct LossRowsProblem {
  DType dtype;
  void* logits;           // (rows, pitch), 16-byte aligned, of which n are logits
  int64_t rows, n;        // n >= 1
  int64_t pitch;          // whole 16-byte chunks, at most 2^31 - 8 elements
  const int64_t* target;  // (rows,)
  void* sums;             // (rows,) of loss_sum_bytes() each: out
  void* losses;           // (rows,) of C: out, or null
  const void* factor;  // of C, what a gradient is multiplied by: (rows,) or one; null: no gradient
  bool factor_per_row;
  LossOptions options;
  int64_t first = 0, classes;  // the first class of the rows, and how many all shards have
  void* parts = nullptr;       // (rows, 4) of C: out of loss_parts
  const void* lse = nullptr;   // (rows,) of C: what loss_gradient takes
};

int64_t loss_sum_bytes();

// The loss of every row; where there is a factor the gradient replaces the logits, and zeros what
// lies between n and pitch.
const char* loss_rows(const LossRowsProblem& problem, const LaunchContext& context);

// What a shard of the classes knows of each row: its largest logit, its sum of exponentials
// relative to that, its sum of logits where `smooth`, and the target's logit: 0 where another shard
// has it.
const char* loss_parts(const LossRowsProblem& problem, bool smooth, const LaunchContext& context);

// The gradient, from the log-sum-exp of all shards, in the place of the logits.
const char* loss_gradient(const LossRowsProblem& problem, const LaunchContext& context);

// loss: one C, the sum of sums (rows,) or their mean over the rows that count.
const char* sum_losses(DType dtype, const void* sums, int64_t rows, bool mean, void* loss,
                       const LaunchContext& context);

// factor = *dloss / (rows that count, where `mean`), or, where `later`, *dloss, and *scale is the
// rest, else 1. dloss: one C, or null for 1. No rows that count are one.
struct LossFactors {
  const int64_t* target;  // (rows,)
  int64_t rows, ignore_index;
  bool mean, later;
  const void* dloss;
  void *factor, *scale;
};
const char* loss_factors(DType dtype, const LossFactors& problem, const LaunchContext& context);

}  // namespace fusedops
