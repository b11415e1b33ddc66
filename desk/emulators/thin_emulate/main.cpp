#include "csrc/cutlass/kernels/thin/thin.h"
#include <random>
#include <vector>
#include <cstring>
using namespace fusedops;
std::mt19937 rng(5);
float normal() { static std::normal_distribution<float> d; return d(rng); }
template <class T> float val(T x) { return to_compute(x); }
int failures = 0, cases = 0;
template <class T> void rows(DType dt, int64_t m, int64_t n, int64_t k, int xo, int dof, bool pre, Activation act, bool cols = false, int ldx = 0) {
  ldx = ldx ? ldx : int(cols ? m : k);
  std::vector<T> xs((cols ? k : m) * ldx + 64), w(n * k), b(n), ds(m * n + 64), zs(m * n + 64);
  T* x0 = (T*)(((uintptr_t)xs.data() + 15) / 16 * 16) + xo;
  T* d0 = (T*)(((uintptr_t)ds.data() + 31) / 16 * 16) + dof; T* z0 = (T*)(((uintptr_t)zs.data() + 31) / 16 * 16) + dof;
  for (auto& v : xs) v = from_compute<T>(normal()); for (auto& v : w) v = from_compute<T>(normal()); for (auto& v : b) v = from_compute<T>(normal());
  std::memset((void*)ds.data(), 0x5a, ds.size() * sizeof(T)); std::memset((void*)zs.data(), 0x5a, zs.size() * sizeof(T));
  thin::Rows p{.dtype = dt, .m = m, .n = n, .k = k, .x = {x0, ldx, cols}, .w = w.data(), .w_stride_n = k, .w_stride_k = 1, .bias = b.data(), .d = d0, .preact = pre ? z0 : nullptr, .activation = act};
  const auto plan = thin::rows_plan(dt, p.x, n, k);
  LaunchContext c{}; c.sm_count = 3;
  const char* e = thin::multiply_rows(p, c);
  double worst = 0; bool bad = e != nullptr;
  for (int64_t i = 0; i < m; ++i) for (int64_t j = 0; j < n; ++j) {
    double s = val(b[j]), a = std::abs(s);
    for (int64_t q = 0; q < k; ++q) { double t = double(val(cols ? x0[q * ldx + i] : x0[i * ldx + q])) * val(w[j * k + q]); s += t; a += std::abs(t); }
    double tol = a * (sizeof(T) == 2 ? 1e-5 : 1e-6) + std::abs(s) * (dt == DType::kBFloat16 ? 4.1e-3 : dt == DType::kFloat16 ? 5e-4 : 0) + 1e-6;
    double y = act == Activation::kRelu ? std::max(s, 0.0) : s;
    double err = std::abs(val(d0[i * n + j]) - y) / tol; if (!(err <= 1)) bad = true; worst = std::max(worst, err);
    if (pre) { err = std::abs(val(z0[i * n + j]) - s) / tol; if (!(err <= 1)) bad = true; }
  }
  for (auto* v : {&ds, &zs}) for (size_t i = 0; i < v->size(); ++i) {
    T* q = v->data() + i; T* lo = v == &ds ? d0 : z0; if (q >= lo && q < lo + m * n && (v == &ds || pre)) continue;
    unsigned char c[sizeof(T)]; std::memcpy(c, q, sizeof(T)); for (auto u : c) if (u != 0x5a) { bad = true; std::printf("written outside at %zd\n", ssize_t(q - lo)); break; }
  }
  ++cases; failures += bad;
  if (bad || (getenv("ALL"))) std::printf("%s rows %ldx%ldx%ld dt%d xo%d do%d cols%d ld%d: flat %d wide %d chunks %d group %d groups %d rows %d bytes %d worst %.2f\n", bad ? "BAD" : "ok", m, n, k, int(dt), xo, dof, cols, ldx, plan.x.flat, plan.x.wide, plan.chunks, plan.group, plan.groups, plan.tile_rows, plan.bytes(), worst);
}
template <class T> void sums(DType dt, int64_t m, int64_t n, int64_t k, int ao, int bo) {
  std::vector<T> as(m * n + 64), bs(m * k + 64);
  T* a = (T*)(((uintptr_t)as.data() + 15) / 16 * 16) + ao; T* b = (T*)(((uintptr_t)bs.data() + 15) / 16 * 16) + bo;
  for (auto& v : as) v = from_compute<T>(normal()); for (auto& v : bs) v = from_compute<T>(normal());
  thin::Sums p{.dtype = dt, .m = m, .n = n, .k = k, .a = {a, n, false}, .b = {b, k, false}, .fp32_out = true};
  LaunchContext c{}; c.sm_count = 3;
  std::vector<float> partial(thin::partial_floats(p, 3)); p.partial = partial.data();
  const char* e = thin::add_rows(p, c); bool bad = e != nullptr;
  for (int64_t i = 0; i < n; ++i) for (int64_t j = 0; j < k; ++j) {
    double s = 0, z = 0, got = 0; for (int64_t r = 0; r < m; ++r) { double t = double(val(a[r * n + i])) * val(b[r * k + j]); s += t; z += std::abs(t); }
    for (size_t q = i * k + j; q < partial.size(); q += n * k) got += partial[q];
    if (!(std::abs(got - s) <= z * 2e-6 + 1e-6)) bad = true;
  }
  ++cases; failures += bad; if (bad) std::printf("BAD sums %ldx%ldx%ld dt%d %d %d\n", m, n, k, int(dt), ao, bo);
}
template <class T> void all(DType dt) {
  const int unit = 4 / sizeof(T);
  struct S { int m, n, k; };
  const S shapes[] = {{9001 / 4, 1, 1}, {2001, 5, 3}, {2003, 3, 64}, {700, 13, 433}, {501, 32, 257}, {801, 32, 32}, {1192, 16, 8}, {701, 64, 6}, {601, 65, 3}, {409, 128, 16}, {410, 399, 3}, {417, 17, 129}, {7001, 2, 4}, {1234, 8, 20}, {415, 200, 31}, {300, 1, 1000}, {803, 11, 64}, {500, 10, 210}, {500, 30, 210}, {777, 4, 106}, {777, 28, 86}, {640, 27, 95}, {500, 31, 249}, {333, 24, 30}, {900, 9, 14}, {900, 6, 25}, {333, 104, 9}, {400, 7, 89}, {500, 20, 33}, {257, 433, 10}};
  for (auto s : shapes) {
    rows<T>(dt, s.m, s.n, s.k, 0, 0, false, Activation::kNone);
    rows<T>(dt, s.m, s.n, s.k, 1, 0, true, Activation::kRelu);
    rows<T>(dt, s.m, s.n, s.k, unit, unit, true, Activation::kRelu);
  }
  for (auto s : {S{500, 10, 43}, S{403, 5, 64}}) { rows<T>(dt, s.m, s.n, s.k, 0, 0, true, Activation::kNone, true); rows<T>(dt, s.m, s.n, s.k, 1, 0, true, Activation::kNone, false, s.k + 3); }
  for (auto s : {S{3001, 5, 3}, S{2001, 11, 64}, S{1003, 31, 89}, S{901, 1, 57}}) for (int o = 0; o < 3; ++o) sums<T>(dt, s.m, s.n, s.k, o, o / 2);
}
int main() {
  all<float>(DType::kFloat32); std::printf("fp32: %d of %d failed\n", failures, cases);
  all<__half>(DType::kFloat16); std::printf("fp16: %d of %d failed\n", failures, cases);
  all<__nv_bfloat16>(DType::kBFloat16); std::printf("bf16: %d of %d failed\n", failures, cases);
  return failures != 0;
}
extern "C" const char* cudaGetErrorString(cudaError_t) { return "error"; }
