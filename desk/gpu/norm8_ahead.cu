// -DAHEAD: the kernel that reads x twice. Times of the norm kernel alone: SHAPES x (rms, ln) x residual, cold L2, medians; beside a copy. Built with -DKC=true|false and -DBLOCKS=n (0: the plan's).
#include KERNEL
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <string>
using namespace fusedops;
#ifdef AHEAD
#define LAUNCH launch_fp8_norm(p, words, c)
#else
#define LAUNCH launch_fp8_norm(p, c)
#endif

#define OK(x) do { cudaError_t e = (x); if (e) { printf("error %s at %d\n", cudaGetErrorString(e), __LINE__); exit(1); } } while (0)
__global__ void fill(__nv_bfloat16* p, int64_t n, unsigned s) { for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) { unsigned h = (i + s) * 2654435761u; h ^= h >> 15; h *= 2246822519u; h ^= h >> 13; p[i] = __float2bfloat16((int(h & 0xffff) - 32768) / 20000.f); } }
template <class F> float median(F f, int n) {
  std::vector<float> t; cudaEvent_t a, b; OK(cudaEventCreate(&a)); OK(cudaEventCreate(&b));
  for (int r = 0; r < 7; ++r) { OK(cudaEventRecord(a)); for (int i = 0; i < n; ++i) f(i); OK(cudaEventRecord(b)); OK(cudaEventSynchronize(b)); float ms; OK(cudaEventElapsedTime(&ms, a, b)); t.push_back(ms * 1e3f / n); }
  std::sort(t.begin(), t.end()); return t[3];
}
int main(int argc, char** argv) {
  cudaDeviceProp d; OK(cudaGetDeviceProperties(&d, 0));
  LaunchContext c; c.device = 0; c.sm_count = d.multiProcessorCount; c.overlap = true; c.stream = nullptr;
  const int shapes[][2] = {{8192, 4096}, {16384, 2048}, {8192, 8192}, {4096, 5120}, {2048, 4096}, {16384, 5120}};
  for (auto& s : shapes) {
    const int64_t m = s[0], k = s[1], n = m * k; const int copies = std::max<int64_t>(2, 300000000 / (2 * n) + 1), calls = std::max(copies, 8);
    std::vector<__nv_bfloat16*> x(copies), r(copies), sum(copies), y(copies); std::vector<uint8_t*> q(copies), qt(copies);
    for (int i = 0; i < copies; ++i) { OK(cudaMalloc(&x[i], 2 * n)); OK(cudaMalloc(&r[i], 2 * n)); OK(cudaMalloc(&sum[i], 2 * n)); OK(cudaMalloc(&y[i], 2 * n)); q[i] = (uint8_t*)y[i]; qt[i] = q[i] + n; fill<<<1024, 256>>>(x[i], n, i); fill<<<1024, 256>>>(r[i], n, 7 * i + 1); }
    __nv_bfloat16 *w, *b; OK(cudaMalloc(&w, 2 * k)); OK(cudaMalloc(&b, 2 * k)); fill<<<8, 256>>>(w, k, 5); fill<<<8, 256>>>(b, k, 9);
    float *sc, *st, *rs, *mu; uint64_t* words; OK(cudaMalloc(&sc, n / 32)); OK(cudaMalloc(&st, n / 32)); OK(cudaMalloc(&rs, 4 * m)); OK(cudaMalloc(&mu, 4 * m)); OK(cudaMalloc(&words, 64 << 20));
    const float copy = median([&](int i) { OK(cudaMemcpyAsync(y[i % copies], x[i % copies], 2 * n, cudaMemcpyDeviceToDevice)); }, calls);
    std::string line = std::to_string(m) + "x" + std::to_string(k) + " copy " + std::to_string(int(4e-3 * n / copy)) + "GB/s";
    for (int rms = 1; rms >= 0; --rms) {
      line += rms ? " | rms" : " | ln";
      for (int res = 0; res < 2; ++res) {
        Fp8Norm p; p.quantize = {}; auto& Q = p.quantize; Q.dtype = DType::kBFloat16; Q.format = Fp8Format::kE4M3; Q.activation = Activation::kNone; Q.power_of_two = false; Q.m = m; Q.k = k; Q.x_stride = k; Q.vectors = true;
        p.rms = rms; p.eps = 1e-5f; p.weight = w; p.bias = rms ? nullptr : b; p.rstd = rs; if (!rms) p.mean = mu;
        const float t = median([&](int j) { int i = j % copies; Q.x = x[i]; Q.rows = {Fp8Scaling::kBlock, q[i], k, k, sc, m, m}; Q.columns = {Fp8Scaling::kTile, qt[i], m, m, st, m / 128, m / 128};
          if (res) p.residual = r[i], p.residual_stride = k, p.sum = sum[i];
          const char* e = LAUNCH; if (e) { printf("%s\n", e); exit(1); } }, calls);
        char t8[64]; snprintf(t8, 64, " %.1f %.2f", t, (res ? 8. : 4.) * n / t / (4. * n / copy)); line += t8;
      }
    }
    puts(line.c_str()); fflush(stdout);
    for (int i = 0; i < copies; ++i) cudaFree(x[i]), cudaFree(r[i]), cudaFree(sum[i]), cudaFree(y[i]);
    for (void* p : {(void*)w, (void*)b, (void*)sc, (void*)st, (void*)rs, (void*)mu, (void*)words}) cudaFree(p);
  }
  // Clusters that fit, by blocks of two to a multiprocessor
}
