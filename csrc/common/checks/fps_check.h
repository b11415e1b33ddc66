// Checks of farthest_point_sample; the fake repeats the texts.
#pragma once

#include <limits>

#include "csrc/common/checks/cloud_check.h"
#include "csrc/common/fps_problem.h"

namespace fusedops::fps {

struct Arguments {
  CloudTensors clouds;
  std::optional<Tensor> start, out_offsets;
  Problem problem;  // all but `out`
};

inline Arguments check_arguments(const Tensor& points, const std::optional<Tensor>& lengths,
                                 const std::optional<Tensor>& offsets,
                                 const std::optional<Tensor>& start,
                                 const std::optional<Tensor>& out_offsets, int64_t n,
                                 int64_t max_length) {
  constexpr const char* kOp = "farthest_point_sample";
  constexpr int64_t kMaxLength = std::numeric_limits<int32_t>::max();
  Arguments result{check_clouds(kOp, points, lengths, offsets), {}, {}, {}};
  const int64_t count = result.clouds.view.count;
  if (start) {
    check_index_vector(kOp, "start", *start, count, "points", points);
    result.start = dense(*start);
  }
  if (out_offsets) {
    check_index_vector(kOp, "out_offsets", *out_offsets, count + 1, "points", points);
    result.out_offsets = dense(*out_offsets);
  }
  FUSEDOPS_CHECK(n >= 0, kOp, ": n must be >= 0; got ", n);
  FUSEDOPS_CHECK(max_length >= 0, kOp, ": max_length must be >= 0; got ", max_length);
  const int64_t longest = std::min(max_length, result.clouds.view.capacity);
  FUSEDOPS_CHECK(longest <= kMaxLength, kOp, ": a cloud must have at most ", kMaxLength,
                 " points; got ", longest);
  result.problem = {.clouds = result.clouds.view,
                    .dtype = result.clouds.dtype,
                    .max_length = longest,
                    .start = index_data(result.start),
                    .out_offsets = index_data(result.out_offsets),
                    .n = n};
  return result;
}

}  // namespace fusedops::fps
