// Which form of a kernel is sooner: softmax staged or in place, elementwise by chunks or by elements. nvcc -std=c++20 -arch=sm_90a -I TREE
#include <cstdio>
#include <vector>
#include <algorithm>
#include "csrc/cuda/rows/softmax/softmax_packed.cuh"
#include "csrc/cuda/elementwise/scale_bias_act.cuh"
#include "csrc/cuda/elementwise/arithmetic.cuh"
using namespace fusedops;
static char* pool; static const size_t kPool = size_t{3} << 29;
static cudaStream_t st;
template <class F> double timed(size_t bytes, F call) {  // us, cold L2: rotates over the pool
  const size_t step = (bytes + 4095) / 4096 * 4096; const int sets = std::max<int>(1, std::min<size_t>(kPool / step, 64));
  const int n = std::max(8, std::min(400, int(4e8 / double(bytes + 200000))));
  cudaGraph_t g; cudaGraphExec_t x;
  cudaStreamBeginCapture(st, cudaStreamCaptureModeGlobal);
  for (int i = 0; i < n; ++i) call(pool + (i % sets) * step);
  cudaStreamEndCapture(st, &g); cudaGraphInstantiate(&x, g, 0);
  cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
  std::vector<float> v;
  for (int r = 0; r < 7; ++r) { cudaEventRecord(a, st); cudaGraphLaunch(x, st); cudaEventRecord(b, st); cudaEventSynchronize(b); float ms; cudaEventElapsedTime(&ms, a, b); v.push_back(ms * 1e3f / n); }
  cudaGraphExecDestroy(x); cudaGraphDestroy(g); std::sort(v.begin(), v.end());
  if (auto e = cudaGetLastError()) printf("error %s\n", cudaGetErrorString(e));
  return v[3];
}
template <class T, bool kBack> void soft(const char* name, int64_t rows, int n) {
  const size_t part = (rows * n * sizeof(T) + 255) / 256 * 256;
  auto run = [&](int most) {
    constexpr int kBytes = kBack ? kPackedBytes<T, T, 2> : kPackedBytes<T, T, 1>;
    const PackedRows r = plan_packed(rows, n, kChunkOf<T>, n * kBytes, 256, most, 132);
    if (r.tile == 0) return std::pair<double, bool>{0., false};
    const double us = timed((kBack ? 3 : 2) * part, [&](char* at) {
      launch_packed_rows(r, kBytes, [&]<int kLanes>(Tag<kLanes>, int64_t bytes) {
        if constexpr (kBack) {
          const SoftmaxBackward<T, T> p{(T*)at, (T*)(at + part), (T*)(at + 2 * part), n, n, false};
          launch_kernel(softmax_backward_packed_kernel<T, T, kLanes>, dim3(r.blocks()), dim3(kPackedThreads), bytes, st, true, p, r);
        } else {
          const SoftmaxForward<T, T> p{(T*)at, (T*)(at + part), n, false};
          launch_kernel(softmax_packed_kernel<T, T, kLanes>, dim3(r.blocks()), dim3(kPackedThreads), bytes, st, true, p, r);
        }
      });
    });
    return std::pair<double, bool>{us, r.staged};
  };
  const auto s = run(32), u = run(0);
  printf("%s %lldx%d: %s %.2f, in place %.2f (%.2f)\n", name, (long long)rows, n, s.second ? "staged" : "few", s.first, u.first, s.first / u.first);
}
// rows of `cols`, x in rows of cols + 8, bias a row; out dense
template <class T> void act(const char* name, int64_t rows, int64_t cols, bool transposed) {
  const size_t part = ((rows + 8) * (cols + 8) * sizeof(T) + 255) / 256 * 256;
  IterationSpace s; s.count = rows * cols; s.dims = 2; s.sizes[0] = rows; s.sizes[1] = cols;
  const int64_t xs[2] = {transposed ? 1 : cols + 8, transposed ? rows : 1};
  for (int d = 0; d < 2; ++d) { s.strides[0][d] = d ? 1 : cols; s.strides[1][d] = xs[d]; s.strides[2][d] = d ? 1 : cols; }
  double t[2];
  for (int single = 0; single < 2; ++single) t[single] = timed(3 * part, [&](char* at) {
    const void* ptr[3] = {at, at + part, at + 2 * part};
    auto p = make_problem<2>(s, ptr, {0.f, 0.f}, sizeof(T), 0);
    if (p.lines) { printf("lines!\n"); return; }
    if (single && !p.single) {
      p.single = true; p.single_cols = SmallDivider(cols);
      for (int d = 0; d < p.outer; ++d) p.single_sizes[d] = SmallDivider(p.sizes[d]);
    }
    p.single = single;
    launch_rows<T>(p, Pointwise<T, 2, AddFn>{}, st, true);
  });
  printf("add %s %lldx%lld%s: chunks %.2f, elements %.2f (%.2f)\n", name, (long long)rows, (long long)cols, transposed ? " t" : "", t[0], t[1], t[0] / t[1]);
}
int main() {
  cudaMalloc(&pool, kPool); cudaMemset(pool, 0, kPool); cudaStreamCreate(&st);
  using B = __nv_bfloat16; using H = __half;
  for (auto [r, n] : {std::pair<int64_t, int>{6574, 144}, {3000, 250}, {42784, 74}, {400000, 74}, {100000, 250}, {20000, 61}, {200000, 61}, {20000, 33}, {300000, 33}, {20000, 25}, {600000, 25}, {20000, 13}, {1000000, 13}, {100000, 7}}) soft<float, false>("fp32", r, n);
  for (auto [r, n] : {std::pair<int64_t, int>{9025, 106}, {8000, 90}, {40000, 61}, {400000, 61}, {200000, 127}, {30000, 127}, {20000, 33}, {600000, 33}, {20000, 25}, {50921, 27}, {1000000, 27}, {50000, 13}, {2000000, 13}, {200000, 7}}) soft<B, false>("bf16", r, n);
  for (auto [r, n] : {std::pair<int64_t, int>{46741, 126}, {9000, 250}, {300000, 61}, {20000, 33}, {20000, 17}}) soft<float, true>("back fp32", r, n);
  for (auto [r, n] : {std::pair<int64_t, int>{74903, 88}, {15831, 113}, {300000, 61}, {20000, 33}, {20000, 17}}) soft<B, true>("back bf16", r, n);
  for (auto [r, c] : {std::pair<int64_t, int64_t>{4, 7}, {271, 79}, {1000, 201}, {3000, 79}, {30000, 79}, {100000, 79}, {300000, 7}, {2000000, 7}, {300000, 15}, {2000000, 15}, {100000, 33}, {1000000, 33}, {3000, 401}, {30000, 401}}) act<B>("bf16", r, c, false);
  for (auto [r, c] : {std::pair<int64_t, int64_t>{271, 79}, {3000, 79}, {100000, 79}, {1000000, 3}, {1000000, 7}, {300000, 15}, {30000, 401}}) act<float>("fp32", r, c, false);
  for (auto [r, c] : {std::pair<int64_t, int64_t>{200, 300}, {2000, 300}, {32067, 576}}) act<B>("bf16", r, c, true);
  return 0;
}
