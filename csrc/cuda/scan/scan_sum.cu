#include "csrc/cuda/scan/scan_launch.cuh"

namespace fusedops {

void scan_sum(ScanCall& call) {
  dispatch(NumberElements{}, call.scan.element, [&]<Element E>(Tag<E>) {
    using T = ElementType<E>;
    scan_with<SumScan<T>>(call);
  });
}

}  // namespace fusedops
