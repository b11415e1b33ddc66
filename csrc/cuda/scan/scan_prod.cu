#include "csrc/cuda/scan/scan_launch.cuh"

namespace fusedops {

void scan_prod(ScanCall& call) {
  dispatch(NumberElements{}, call.scan.element, [&]<Element E>(Tag<E>) {
    using T = ElementType<E>;
    scan_with<ProdScan<T>>(call);
  });
}

}  // namespace fusedops
