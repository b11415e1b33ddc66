// WGMMA with A in 128-byte swizzle that begins at any row, and groups of 8 rows any number of rows apart: does base offset 0 read what the bulk copy engine writes by address?
#include <cuda_bf16.h>
#include <cstdint>
#include <cstdio>
__global__ void probe(const int* cases, int n, int* bad) {
  __shared__ __align__(1024) unsigned char a[256 * 128], b[64 * 128];
  const int t = threadIdx.x;
  for (int i = t; i < 256 * 64; i += 128) { int r = i / 64, c = i % 64; uint32_t o = r * 128 + c * 2; o ^= (o >> 7 & 7) << 4; *(__nv_bfloat16*)(a + o) = __float2bfloat16(float((r * 7 + c * 3) % 251)); }
  for (int i = t; i < 64 * 64; i += 128) { int r = i / 64, c = i % 64; uint32_t o = r * 128 + c * 2; o ^= (o >> 7 & 7) << 4; *(__nv_bfloat16*)(b + o) = __float2bfloat16(r == c ? 1.f : 0.f); }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); __syncthreads();
  for (int k = 0; k < n; ++k) {
    const int shift = cases[3 * k], apart = cases[3 * k + 1], base = cases[3 * k + 2];
    float d[32]; for (int i = 0; i < 32; ++i) d[i] = 0;
    uint32_t pa = (uint32_t)__cvta_generic_to_shared(a) + shift * 128, pb = (uint32_t)__cvta_generic_to_shared(b);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int s = 0; s < 4; ++s) {
      uint64_t da = (uint64_t)((pa & 0x3ffff) >> 4) + s * 2 | 1ull << 16 | (uint64_t)(apart * 128 >> 4) << 32 | (uint64_t)base << 49 | 1ull << 62;
      uint64_t db = (uint64_t)((pb & 0x3ffff) >> 4) + s * 2 | 1ull << 16 | 64ull << 32 | 1ull << 62;
#define R(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
      asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
                   : R(0), R(4), R(8), R(12), R(16), R(20), R(24), R(28) : "l"(da), "l"(db));
    }
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 32; ++i) { int r = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, c = i / 4 * 8 + t % 4 * 2 + i % 2; int row = shift + r / 8 * apart + r % 8; float want = float((row * 7 + c * 3) % 251); if (d[i] != want) atomicAdd(bad + k, 1); }
  }
}
int main() {
  int c[300], n = 0; int s[] = {0, 1, 2, 3, 5, 8, 11, 19}, ap[] = {8, 10, 18}; for (int x : s) for (int y : ap) for (int z : {0, x % 8}) { c[3 * n] = x; c[3 * n + 1] = y; c[3 * n + 2] = z; if (z == 0 || x % 8) ++n; }
  int *dc, *db; cudaMalloc(&dc, sizeof c); cudaMalloc(&db, 400); cudaMemset(db, 0, 400); cudaMemcpy(dc, c, sizeof c, cudaMemcpyHostToDevice);
  probe<<<1, 128>>>(dc, n, db); int b[100]; cudaMemcpy(b, db, 400, cudaMemcpyDeviceToHost); printf("%s; (shift, apart, base offset): wrong\n", cudaGetErrorString(cudaGetLastError()));
  for (int k = 0; k < n; ++k) printf("(%d,%d,%d):%d ", c[3 * k], c[3 * k + 1], c[3 * k + 2], b[k]); printf("\n");
}
