#include "cuda/scan_launch.cuh"

namespace fusedops {

void scan_sum(ScanCall& call) {
  dispatch(AllElements{}, call.scan.element, [&]<NumberType E>(Tag<E>) {
    using T = ElementType<E>;
    scan_with<SumScan<T>>(call);
  });
}

}  // namespace fusedops
