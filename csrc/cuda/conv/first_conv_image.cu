// first_conv_image on CUDA.
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cuda/conv/first_host.h"
#include "csrc/cuda/conv/first_image.cuh"

namespace fusedops::cuda {
namespace {

constexpr int64_t kMostAnyBlocks = 1 << 20;

// The kernel's side, or kAnyFirst.
int image_instance(const FirstImageProblem& problem, DType dtype) {
  const FirstProblem& p = problem.forward;
  bool fits = first_instance(p, dtype) != kAnyFirst && p.outputs <= kImageOutputs;
  fits = fits && reinterpret_cast<uintptr_t>(p.weight) % 16 == 0;
  fits = fits && reinterpret_cast<uintptr_t>(problem.dx) % 4 == 0;
  // NOTE: places in an image are numbers of 32 bits there.
  constexpr int64_t kMost = int64_t{1} << 30;
  fits = fits && p.h + p.pad_h <= kMost && p.w * kFirstChannels <= kMost && p.pad_w <= kMost;
  fits = fits && p.n * ceil_div(p.h, int64_t{2}) * ceil_div(p.w, int64_t{2}) <= kMost;
  return fits ? static_cast<int>(p.kh) : kAnyFirst;
}

template <class T, int kKernel, int kSteps>
void launch(const LaunchScope& scope, FirstImageProblem problem) {
  using L = FirstImageLayout<kKernel, kSteps>;
  constexpr auto kKernelOf = &first_image_kernel<T, kKernel, kSteps>;
  FirstProblem& p = problem.forward;
  p.tiles_h = static_cast<int>(ceil_div(p.h, int64_t{2 * kSquareRows}));
  p.tiles_w = static_cast<int>(ceil_div(p.w, int64_t{2 * L::kSquares}));
  p.tiles = static_cast<unsigned>(p.n * p.tiles_h * p.tiles_w);
  constexpr int kReserved = 1024;  // of a block
  const int each =
      (scope.facts().shared_memory_per_block + kReserved) / (2 * L::kBufferBytes + kReserved);
  const int64_t places =
      int64_t{scope.facts().sm_count} * (each < kImageBlocks ? each : kImageBlocks);
  const int64_t rounds = ceil_div(int64_t{p.tiles}, places);
  allow_any_shared_memory<kKernelOf>();
  launch_kernel(kKernelOf, dim3(static_cast<unsigned>(ceil_div(int64_t{p.tiles}, rounds))),
                dim3(kImageThreads), 2 * L::kBufferBytes, scope.stream(),
                scope.facts().code_version >= 90, problem);
}

void launch_first_image(const LaunchScope& scope, DType dtype, const FirstImageProblem& problem) {
  const FirstProblem& p = problem.forward;
  const int instance = image_instance(problem, dtype);
  if (instance == kAnyFirst) {
    const int64_t blocks = ceil_div(p.n * p.h * p.w * p.channels, int64_t{kFirstThreads});
    const dim3 grid(static_cast<unsigned>(blocks < kMostAnyBlocks ? blocks : kMostAnyBlocks));
    dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
      launch_kernel(first_image_any_kernel<DeviceType<D>>, grid, dim3(kFirstThreads), 0,
                    scope.stream(), scope.facts().code_version >= 90, problem);
    });
    return;
  }
  with_half(dtype, [&]<class T>() {
    dispatch(FirstInstances{}, instance, [&]<int kInstance>(Tag<kInstance>) {
      if constexpr (kInstance != kAnyFirst) {
        p.outputs <= 32 ? launch<T, kInstance, 2>(scope, problem)
                        : launch<T, kInstance, 4>(scope, problem);
      }
    });
  });
}

Tensor first_conv_image(const Tensor& dy_,      // (N, H', W', O)
                        const Tensor& x,        // (N, H, W, C)
                        const Tensor& weight_,  // (O, kh, kw, C)
                        int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w) {
  constexpr const char* kOp = "first_conv_image";
  // Guard
  const LaunchScope scope(kOp, x);

  // Checks
  const DepthwiseShape s =
      check_first_conv_gradient(kOp, dy_, x, weight_, {stride_h, stride_w, pad_h, pad_w});

  // Allocate
  Tensor dx = new_dense(x, x.sizes());

  // Empty early return
  if (dx.numel() == 0) return dx;
  if (dy_.numel() == 0) return torch::stable::zero_(dx);

  // Config
  Tensor dy = dense(dy_);
  const Tensor weight = dense(weight_);
  FirstImageProblem problem{};
  problem.forward = first_problem(s, weight.size(0));
  problem.forward.weight = weight.const_data_ptr();
  problem.forward.y = dy.mutable_data_ptr();
  problem.dx = dx.mutable_data_ptr();

  // Launch
  launch_first_image(scope, check_floating(kOp, "x", x), problem);

  // Launch check
  check_launch(kOp);
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("first_conv_image", FUSEDOPS_BOX(&first_conv_image));
}

}  // namespace fusedops::cuda
