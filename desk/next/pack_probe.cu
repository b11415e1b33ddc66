// Every tile and number of slices of kernels/unaligned beside the model's choice, and the transposing copies: prints us.
#include "csrc/cutlass/kernels/unaligned/unaligned.cuh"
#include "csrc/cutlass/kernels/unaligned/unaligned.h"
#include "csrc/cutlass/passes/pack.h"
#include "csrc/cutlass/passes/pack.cuh"
#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>
using namespace fusedops;
static char* flush_at;
static float timed(const std::function<void()>& f, int rounds = 7) {
  cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b); std::vector<float> t; f();
  for (int i = 0; i < rounds; ++i) { cudaMemsetAsync(flush_at, i, 128 << 20); cudaEventRecord(a); f(); cudaEventRecord(b); cudaEventSynchronize(b); float ms; cudaEventElapsedTime(&ms, a, b); t.push_back(ms * 1e3f); }
  std::sort(t.begin(), t.end()); return t[rounds / 2];
}
__global__ void fill(uint16_t* p, size_t n) { for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) p[i] = 0x3c00 + (i * 2654435761u >> 24) % 512; }
int main() {
  cudaMalloc(&flush_at, 128 << 20); char *x, *w, *d; const size_t most = size_t(1) << 30; cudaMalloc(&x, most); cudaMalloc(&w, most); cudaMalloc(&d, most);
  fill<<<1024, 256>>>((uint16_t*)x, most / 2); fill<<<1024, 256>>>((uint16_t*)w, most / 2);
  LaunchContext ctx{}; cudaGetDevice(&ctx.device); ctx.sm_count = 132;
  struct P { int64_t rows, cols; int bytes; } packs[] = {{11101, 7928, 2}, {1859, 33859, 4}, {58838, 1652, 2}, {2415, 44338, 4}, {14903, 8640, 2}, {2049, 333, 2}};
  for (auto& p : packs) {
    const int64_t vec = 16 / p.bytes, ld = (p.cols + vec - 1) / vec * vec; const PackSource s{x, p.rows, p.cols, 1, p.rows}; const PackSource r{x, p.cols, p.rows, p.rows, 1};
    const PackShape shape{p.rows, p.cols, 1, p.rows, p.rows, ld}; const int tiles = int((ld * p.bytes + 127) / 128);
    const float now = timed([&] { pack_operand(s, p.bytes, d, p.rows, ld, ctx); });
    const float old = timed([&] { const dim3 grid(unsigned(tiles * ((p.rows + 63) / 64))); if (p.bytes == 2) pack_transpose_kernel<uint16_t><<<grid, 256>>>((uint16_t*)x, (uint16_t*)d, shape, tiles); else pack_transpose_kernel<uint32_t><<<grid, 256>>>((uint32_t*)x, (uint32_t*)d, shape, tiles); });
    const float rows = timed([&] { pack_operand(r, p.bytes, d, p.cols, (p.rows + vec - 1) / vec * vec, ctx); });
    const float copy = timed([&] { cudaMemcpyAsync(d, x, p.rows * p.cols * p.bytes, cudaMemcpyDeviceToDevice); });
    std::printf("pack %ldx%ld %d B: transposing %.0f us, main's %.0f, rows %.0f, copy %.0f\n", p.rows, p.cols, p.bytes, now, old, rows, copy);
  }
  struct C { int64_t m, n, k; Major a, b; } cases[] = {{1, 11101, 7928, Major::kK, Major::kMN}, {8, 8325, 9762, Major::kK, Major::kK}, {64, 7219, 14420, Major::kK, Major::kK}, {56, 14903, 8640, Major::kK, Major::kMN}, {24, 935, 9607, Major::kK, Major::kK}, {148153, 6, 803, Major::kK, Major::kK}, {15226, 98, 6444, Major::kK, Major::kK}, {82951, 631, 69, Major::kK, Major::kK}, {260289, 46, 199, Major::kK, Major::kMN}, {199, 46, 260289, Major::kMN, Major::kMN}, {2357, 2131, 2001, Major::kK, Major::kK}};
  for (auto& c : cases) {
    std::printf("%ldx%ldx%ld:", c.m, c.n, c.k); float best = 1e9; char what[64] = "";
    for (int tile = 0; tile < unaligned::kNumTiles; ++tile) {
      const auto& t = unaligned::kTiles[tile]; float fastest = 1e9; int at = 0;
      for (int s : {1, 2, 3, 4, 6, 8, 16, 32, 64, 128}) {
        if (s > 1 && (c.k / s < 256 || size_t(s) * c.m * c.n * 4 > most)) continue;
        if (((c.m + t.m - 1) / t.m) * ((c.n + t.n - 1) / t.n) * s > 40000 && s > 1) continue;
        GemmProblem p; p.m = c.m; p.n = p.ldd = c.n; p.k = c.k; p.dtype = DType::kBFloat16; p.d = d; p.a = {x, c.a == Major::kK ? c.k : c.m, c.a}; p.b = {w, c.b == Major::kK ? c.k : c.n, c.b};
        if (s > 1) { p.epilogue = Epilogue::kAccumulator; p.slice_k = ((c.k + s - 1) / s + 63) / 64 * 64; p.slices = (c.k + p.slice_k - 1) / p.slice_k; p.slice_stride = c.m * c.n; }
        if (const char* e = unaligned::multiply_bf16(tile, p, ctx)) { std::printf(" %s", e); continue; }
        const float us = timed([&] { unaligned::multiply_bf16(tile, p, ctx); }, 3); if (us < fastest) fastest = us, at = s;
      }
      std::printf(" %dx%d/%d %.0f", t.m, t.n, at, fastest);
    }
    std::printf(" | bytes at 3 TB/s %.0f\n", (c.m * c.k + c.k * c.n + c.m * c.n) * 2 / 3e6);
  }
  std::printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
