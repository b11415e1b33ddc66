// Furthest point sampling as the CPU and every kernel sees it: plain data, no torch.
#pragma once

#include "csrc/common/cloud.h"
#include "csrc/common/dtype.h"

namespace fusedops::fps {

struct Problem {
  Clouds clouds;
  DType dtype = DType::kFloat32;
  int64_t max_length = 0;                // points of a cloud beyond it are ignored
  const int64_t* start = nullptr;        // (B,) position within the cloud, or null: 0
  const int64_t* out_offsets = nullptr;  // (B + 1,) or null: padded
  int64_t n = 0;                         // samples of a cloud; of all clouds with out_offsets
  int64_t* out = nullptr;                // (B, n) or (n,)
};

// One cloud's share of a problem.
struct Task {
  int64_t first_row;   // of points
  int64_t index_base;  // added to a position in what is written
  int64_t* out;
  int64_t out_size;  // entries of out, the last of them -1 where the cloud is shorter
  uint32_t length;
  uint32_t count;  // samples
  uint32_t start;
};

FUSEDOPS_HOST_DEVICE Task task_of(const Problem& p, int64_t b) {
  const int64_t length = clamp(p.clouds.length(b), 0, p.max_length);
  const int64_t begin = p.out_offsets ? clamp(p.out_offsets[b], 0, p.n) : b * p.n;
  const int64_t end = p.out_offsets ? clamp(p.out_offsets[b + 1], begin, p.n) : begin + p.n;
  const int64_t count = length < end - begin ? length : end - begin;
  const int64_t start = p.start && length > 0 ? clamp(p.start[b], 0, length - 1) : 0;
  return {p.clouds.first_row(b),
          p.clouds.index_base(b),
          p.out + begin,
          end - begin,
          static_cast<uint32_t>(length),
          static_cast<uint32_t>(count),
          static_cast<uint32_t>(start)};
}

}  // namespace fusedops::fps
