// From a Scan to a kernel, for one operator.
#pragma once

#include "csrc/common/device/element_types.cuh"
#include "csrc/cuda/scan/scan.h"
#include "csrc/cuda/scan/scan_chain.cuh"
#include "csrc/cuda/scan/scan_columns.cuh"
#include "csrc/cuda/scan/scan_rows.cuh"

namespace fusedops {

template <class Op>
ScanRows<Op> rows_problem(const Scan& s) {
  ScanRows<Op> p{};
  p.x = static_cast<const typename Op::In*>(s.x);
  p.y = static_cast<typename Op::Out*>(s.y);
  p.index = s.index;
  p.rows = s.shape.outer;
  p.n = s.shape.n;
  p.x_stride = s.shape.outer_stride;
  p.exclusive = s.exclusive;
  p.reverse = s.reverse;
  p.chain = static_cast<uint64_t*>(s.workspace);
  return p;
}

template <class Op>
void scan_rows(ScanCall& call) {
  const Scan& s = call.scan;
  auto p = rows_problem<typename Op::Narrow>(s);
  if (plan_rows(p, s.clusters, s.sm_count)) {
    call.needs.workspace = rows_bytes(p);
    if (call.size_only) return;
    if constexpr (!Op::kIndexed) {
      if (s.reverse) return launch_scan_rows<Op, true>(p, s.clusters, call.stream);
    }
    return launch_scan_rows<typename Op::Narrow, false>(p, s.clusters, call.stream);
  }
  auto chain = rows_problem<Op>(s);
  plan_chain(chain);
  call.needs.workspace = chain_bytes(chain);
  if (call.size_only) return;
  if constexpr (!Op::kIndexed) {
    if (s.reverse) return launch_scan_chain<Op, true>(chain, s.sm_count, call.stream);
  }
  launch_scan_chain<Op, false>(chain, s.sm_count, call.stream);
}

template <class Op>
void scan_columns(ScanCall& call) {
  const Scan& s = call.scan;
  ScanColumns<Op> p{};
  p.x = static_cast<const typename Op::In*>(s.x);
  p.y = static_cast<typename Op::Out*>(s.y);
  p.index = s.index;
  p.outer = s.shape.outer;
  p.n = s.shape.n;
  p.inner = s.shape.inner;
  p.x_outer = s.shape.outer_stride;
  p.x_row = s.shape.dim_stride;
  p.exclusive = s.exclusive;
  p.reverse = s.reverse;
  p.partial = static_cast<typename Op::State*>(s.workspace);
  constexpr int kVec = Op::kVec;
  const bool vector = (p.inner | p.x_outer | p.x_row) % kVec == 0 &&
                      reinterpret_cast<uintptr_t>(p.x) % sizeof(Vec<typename Op::In, kVec>) == 0;
  if (is_short_column(p, vector ? kVec : 1, s.sm_count)) {
    call.needs.blocks = vector ? short_column_blocks<Op, kVec>(p) : short_column_blocks<Op, 1>(p);
    if (call.size_only) return;
    return vector ? launch_short_columns<Op, kVec>(p, s.clusters, call.stream)
                  : launch_short_columns<Op, 1>(p, s.clusters, call.stream);
  }
  plan_columns(p, vector ? kVec : 1, s.sm_count);
  call.needs = {columns_bytes(p), p.strips * p.segments * p.outer};
  if (call.size_only) return;
  vector ? launch_scan_columns<Op, kVec>(p, s.clusters, call.stream)
         : launch_scan_columns<Op, 1>(p, s.clusters, call.stream);
}

template <class Op>
void scan_with(ScanCall& call) {
  return call.scan.shape.inner == 1 ? scan_rows<Op>(call) : scan_columns<Op>(call);
}

}  // namespace fusedops
