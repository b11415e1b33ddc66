#include "cuda/scan_launch.cuh"

namespace fusedops {

void scan_prod(ScanCall& call) {
  dispatch(AllElements{}, call.scan.element, [&]<NumberType E>(Tag<E>) {
    using T = ElementType<E>;
    scan_with<ProdScan<T>>(call);
  });
}

}  // namespace fusedops
