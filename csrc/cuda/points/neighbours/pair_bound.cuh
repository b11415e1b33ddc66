// A bound of squared distances in three dimensions that costs three multiply-adds a pair.
//
// With p' = p - c and q' = q - c for a point c near the queries, |q - p|^2 <= L means that the
// value |p'|^2 / 2 - q'.p' is at most (L - |q'|^2) / 2. Rounding makes either side wrong by less
// than kBoundSlack / 2 times |p'|^2 + |q'|^2, which they are widened by: no pair is lost, and what
// passes is measured like everywhere else.
#pragma once

#include "csrc/common/device/cloud.cuh"

namespace fusedops {

inline constexpr float kBoundSlack = 0x1p-19f;
inline constexpr float kLargeNorm = 1e36f;       // no bound beyond it: sums may overflow
inline constexpr float kLargePointNorm = 1e38f;  // a point beyond it has the value NaN

// p' and |p'|^2 / 2 less the slack.
__device__ __forceinline__ float4 bound_point(float x, float y, float z) {
  const float norm = fmaf(z, z, fmaf(y, y, x * x));
  return {x, y, z, norm < kLargePointNorm ? norm * (0.5f - kBoundSlack) : NAN};
}

// One query, as -q'.
struct BoundQuery {
  float x, y, z;

  __device__ BoundQuery() = default;
  __device__ BoundQuery(const float4& query, const float3& center)
      : x(center.x - query.x), y(center.y - query.y), z(center.z - query.z) {
    // NOTE: kept from being computed again in every turn of a loop
    asm volatile("" : "+f"(x), "+f"(y), "+f"(z));
  }

  __device__ __forceinline__ float norm() const { return fmaf(z, z, fmaf(y, y, x * x)); }
  __device__ __forceinline__ float value(const float4& point) const {
    return fmaf(point.z, z, fmaf(point.y, y, fmaf(point.x, x, point.w)));
  }
  // What the value of a point at distance `reach` or less cannot exceed. NaN may be as near.
  __device__ __forceinline__ float bound(float reach) const {
    const float own = norm();
    if (!(own < kLargeNorm && reach < kLargeNorm)) return own == own ? INFINITY : -INFINITY;
    return fmaf(own, kBoundSlack - 0.5f, reach * (0.5f + kBoundSlack)) + 1e-37f;
  }
  // The distance that a point of this value cannot exceed: |p'|^2 <= 2 |q'|^2 + 2 of it.
  __device__ __forceinline__ float reach(float value) const {
    return fmaxf(fmaf(norm(), 0.5f + 4 * kBoundSlack, value) * (2.0f + 32 * kBoundSlack), 0.0f);
  }
};

// Row `row` of points of three coordinates, as they are.
__device__ __forceinline__ float4 load_point(const void* points, DType dtype, int64_t row) {
  return {load_as<float>(points, dtype, row * 3), load_as<float>(points, dtype, row * 3 + 1),
          load_as<float>(points, dtype, row * 3 + 2), 0.0f};
}
// Near nothing.
__device__ __forceinline__ float4 no_point() { return {NAN, NAN, NAN, 0.0f}; }

// A point near the queries of a block: its first one.
__device__ __forceinline__ float3 bound_center(const void* queries, DType dtype, int64_t row) {
  const float4 at = load_point(queries, dtype, row);
  const auto finite = [](float value) { return isfinite(value) ? value : 0.0f; };
  return {finite(at.x), finite(at.y), finite(at.z)};
}

__device__ __forceinline__ float4 load_shared(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace fusedops
