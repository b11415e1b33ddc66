#include "csrc/cutlass/select/time_model.h"

#include <algorithm>
#include <cmath>

namespace fusedops {

int output_bytes(const GemmProblem& p) {
  if (p.epilogue == Epilogue::kAccumulator) return 4;
  const int matrices = p.epilogue == Epilogue::kPreact ? 2
                       : p.epilogue == Epilogue::kGrad ? 2 + is_costly(p.activation)
                                                       : 1;
  return static_cast<int>(dtype_bytes(p.dtype)) * matrices;
}

double dram_bytes(const GemmProblem& p) {
  const double operands = double(p.m) * p.k + double(p.k) * p.n;
  return operands * dtype_bytes(p.dtype) + double(p.m) * p.n * output_bytes(p);
}

double overlap(double a, double b, double power) {
  return std::pow(std::pow(a, power) + std::pow(b, power), 1 / power);
}

double reduce_us(const GemmProblem& p, int slices) {
  return kReduceUs + double(p.m) * p.n * slices * 4 / (2 * kDramBytesPerUs);
}

double pack_us(const GemmProblem& p, int64_t rows, int64_t cols, bool transposes) {
  const double bytes = 2.0 * rows * cols * dtype_bytes(p.dtype);
  if (transposes) return kCopyUs + bytes / kTransposedBytesPerUs;
  return kCopyUs + std::max(bytes / kCopiedBytesPerUs, double(rows) * kCopiedRowUs);
}

double step_bytes(const GemmProblem& p, double rows_a, double rows_b, double cold) {
  const double larger = std::clamp(std::log2(double(p.n) / double(p.m)) / 4, -1.0, 1.0);
  return 128 * (rows_a * (1 - cold * larger) + rows_b * (1 + cold * larger));
}

}  // namespace fusedops
