#include "csrc/cuda/scan/segment/segment_launch.cuh"

namespace fusedops {

int64_t segment_max(const Segments& segments, cudaStream_t stream) {
  return dispatch_dtype(segments.shape.dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    return segment_with<SegmentExtreme<T, true>>(segments, stream);
  });
}

}  // namespace fusedops
