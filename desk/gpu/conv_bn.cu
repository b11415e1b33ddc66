// Batch norm of a layer in training, bf16, ReLU: by passes and in clusters, in graphs of 24 calls over rotated buffers; z as a convolution left it (written before each call: its copy is timed and taken away).
#include <cstdio>
#include <cstring>
#include <cmath>
#include <algorithm>
#include <vector>
#include "csrc/common/device/device_types.cuh"
#include "csrc/cuda/batch_norm/batch_norm_cluster_launch.cuh"
using namespace fusedops; using T = __nv_bfloat16;
template <auto K> void clusters(const TrainProblem& q, int inputs, cudaStream_t s) { allow_any_shared_memory<K>(); const WalkGrid& g = q.pass.grid; auto e = launch_cluster_kernel(K, dim3(g.row_blocks * g.col_blocks), dim3(kClusterThreads), unsigned(g.row_blocks), size_t(16) * kClusterThreads * inputs * q.slots, s, true, q); if (e) printf("%s\n", cudaGetErrorString(e)); }
struct Set { T *x, *z, *dy, *y, *dx; };
int main() {
  cudaStream_t s; cudaStreamCreate(&s); int sms; cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  long shapes[][2] = {{3136, 512}, {12544, 256}, {12544, 480}, {12544, 80}, {3136, 1152}, {3136, 1280}, {8192, 512}, {3136, 2048}, {12544, 1024}};
  for (auto& sh : shapes) { long R = sh[0], C = sh[1]; int n = int(std::min(24l, std::max(4l, (150l << 20) / (R * C * 10)))); std::vector<Set> sets(n);
    std::vector<unsigned short> h(R * C); for (auto& v : h) v = 0x3c00 + rand() % 0x400 | (rand() & 1) << 15;
    for (auto& t : sets) for (T** p : {&t.x, &t.z, &t.dy, &t.y, &t.dx}) { cudaMalloc(p, R * C * 2); cudaMemcpy(*p, h.data(), R * C * 2, cudaMemcpyHostToDevice); }
    float *v, *mean, *var, *sums; double* partial; cudaMalloc(&v, C * 4); cudaMalloc(&mean, C * 4); cudaMalloc(&var, C * 4); cudaMalloc(&sums, C * 8); cudaMalloc(&partial, 64 << 20); std::vector<float> ones(C, 1.f); cudaMemcpy(v, ones.data(), C * 4, cudaMemcpyHostToDevice);
    auto base = [&](Set& t) { PassProblem p{R, C}; p.x = t.x; p.out = t.y; p.partial = partial; p.norm.weight = p.norm.bias = {v, true}; p.norm.eps = 1e-5; p.activation = Activation::kRelu; return p; };
    StatisticsResult res{}; res.mean = mean; res.var = var;
    auto fwd = [&](Set& t) { StatisticsProblem q{R, C, t.x, partial, walk_grid(R, C, 8, statistics_unroll(2), sms, kStatisticsBlocks)}; launch_statistics<T>(q, res, 8, s, true); PassProblem p = base(t); p.norm.mean = {mean, true}; p.norm.var = {var, true}; p.grid = walk_grid(R, C, 8, pass_unroll(1), sms, kPassBlocks); launch_kernel(batch_norm_apply_kernel<T, 8, false>, dim3(p.grid.row_blocks * p.grid.col_blocks), dim3(kWalkThreads), 0, s, true, p); };
    auto bwd = [&](Set& t) { PassProblem p = base(t); p.dy = t.dy; p.out = nullptr; p.norm.mean = {mean, true}; p.norm.var = {var, true}; p.grid = walk_grid(R, C, 8, pass_unroll(2), sms, kPassBlocks); dim3 g(p.grid.row_blocks * p.grid.col_blocks); launch_kernel(batch_norm_sums_kernel<T, 8, false>, g, dim3(kWalkThreads), 0, s, true, p); launch_kernel(batch_norm_finish_sums_kernel<T>, dim3((C + 7) / 8), dim3(kWalkThreads), 0, s, true, p, sums); p.out = t.dx; p.sums = sums; launch_kernel(batch_norm_backward_kernel<T, 8, false>, g, dim3(kWalkThreads), 0, s, true, p); };
    auto p1 = cluster_plan(R, C, 8, sms, 232448, 1), p2 = cluster_plan(R, C, 8, sms, 232448, 2);
    auto cfwd = [&](Set& t) { if (!p1) return; TrainProblem q{base(t)}; q.pass.grid = p1->grid; q.slots = p1->slots; q.statistics = res; clusters<&batch_norm_cluster_kernel<T, false>>(q, 1, s); };
    auto cbwd = [&](Set& t) { if (!p2) return; TrainProblem q{base(t)}; q.pass.dy = t.dy; q.pass.out = t.dx; q.pass.norm.mean = {mean, true}; q.pass.norm.var = {var, true}; q.pass.grid = p2->grid; q.slots = p2->slots; q.sums = sums; clusters<&batch_norm_cluster_backward_kernel<T, false>>(q, 2, s); };
    auto time = [&](auto&& f) { cudaGraph_t g; cudaGraphExec_t e; cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed); for (auto& t : sets) { cudaMemcpyAsync(t.x, t.z, R * C * 2, cudaMemcpyDeviceToDevice, s); f(t); } cudaStreamEndCapture(s, &g); cudaGraphInstantiate(&e, g, 0); std::vector<float> m; for (int i = 0; i < 15; ++i) { cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b); cudaEventRecord(a, s); cudaGraphLaunch(e, s); cudaGraphLaunch(e, s); cudaEventRecord(b, s); cudaEventSynchronize(b); float ms; cudaEventElapsedTime(&ms, a, b); m.push_back(ms * 1e3f / 2 / n); } std::sort(m.begin(), m.end()); return m[7]; };
    float none = time([](Set&) {}), a = time(fwd) - none, b = time(cfwd) - none, c = time(bwd) - none, d = time(cbwd) - none;
    std::vector<unsigned short> y0(R * C), y1(R * C); auto take = [&](auto&& f, T* from, std::vector<unsigned short>& to) { cudaMemcpyAsync(sets[0].x, sets[0].z, R * C * 2, cudaMemcpyDeviceToDevice, s); f(sets[0]); cudaStreamSynchronize(s); cudaMemcpy(to.data(), from, R * C * 2, cudaMemcpyDeviceToHost); };
    auto differ = [&] { double w = 0, k = 0; for (long i = 0; i < R * C; ++i) { float f0, f1; unsigned u0 = unsigned(y0[i]) << 16, u1 = unsigned(y1[i]) << 16; memcpy(&f0, &u0, 4); memcpy(&f1, &u1, 4); w += (f0 - f1) * (f0 - f1); k += f0 * f0; } return sqrt(w / k); };
    take(fwd, sets[0].y, y0); take(cfwd, sets[0].y, y1); double ey = differ(); take(bwd, sets[0].dx, y0); take(cbwd, sets[0].dx, y1); double ed = differ();
    printf("%ldx%ld copy %.1f | forward passes %.1f clusters %.1f (%dx%ld) | backward passes %.1f clusters %.1f (%dx%ld) | differ %.0e %.0e %s\n", R, C, none, a, p1 ? b : -1, p1 ? p1->grid.threads_x : 0, p1 ? long(p1->grid.row_blocks) : 0, c, p2 ? d : -1, p2 ? p2->grid.threads_x : 0, p2 ? long(p2->grid.row_blocks) : 0, ey, ed, cudaGetErrorString(cudaGetLastError()));
    for (auto& t : sets) for (T* p : {t.x, t.z, t.dy, t.y, t.dx}) cudaFree(p); cudaFree(v); cudaFree(mean); cudaFree(var); cudaFree(sums); cudaFree(partial); }
}
