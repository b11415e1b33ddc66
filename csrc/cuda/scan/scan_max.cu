#include "csrc/cuda/scan/scan_launch.cuh"

namespace fusedops {

void scan_max(ScanCall& call) {
  dispatch(NumberElements{}, call.scan.element, [&]<Element E>(Tag<E>) {
    using T = ElementType<E>;
    scan_with<ExtremeScan<T, true>>(call);
  });
}

}  // namespace fusedops
