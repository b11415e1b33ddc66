#include "csrc/cuda/fp8/fp8_hidden.cuh"
#include "csrc/cuda/fp8/fp8_rows.cuh"
#include <random>
#include <vector>
using namespace fusedops;
static void dump(const char* what, const void* p, size_t n) { uint64_t h = 1469598103934665603ull; for (size_t i = 0; i < n; ++i) h = (h ^ ((const uint8_t*)p)[i]) * 1099511628211ull; printf("%s %zu %016lx\n", what, n, (unsigned long)h); fflush(stdout); }
template <class T> struct Data { std::vector<T> v; int stride; };
template <class T> std::vector<T> make(int m, int stride, unsigned seed, bool odd) { std::mt19937 g(seed); std::normal_distribution<float> n(0, 1); std::vector<T> x(size_t(m) * stride); for (auto& v : x) { float f = n(g); f *= exp2f(float(int(g() % 24) - 12)); v = from_compute<T>(f); } if (odd) { x[g() % x.size()] = from_compute<T>(NAN); x[g() % x.size()] = from_compute<T>(INFINITY); } return x; }
static int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }
struct Out { std::vector<uint8_t> q, qt; std::vector<float> s, st, part; std::vector<uint32_t> mr, mc;
  void set(Fp8Quantize& Q, int m, int k, int rows, int cols, bool partial) { const int nk = up(k, 128) / 128, nm = up(m, 128) / 128; int64_t kp = up(k, 16), mp = up(m, 16), m4 = up(m, 4), k4 = up(k, 4);
    q.assign(m * kp, 0x77), qt.assign(k * mp, 0x77); s.assign(size_t(nk) * m4 + m + 1, -1), st.assign(size_t(nm) * k4 + k + 1, -1); mr.assign(m, 0x40000000), mc.assign(k, 0x40100000);
    auto side = [&](int sc, uint8_t* q, int64_t kp, float* s, int64_t lines, int64_t pitch, uint32_t* mx) { Fp8Side d; d.scaling = Fp8Scaling(sc); d.q = q; d.pitch = d.width = kp; d.scale = s; d.scale_pitch = sc == 4 ? pitch : lines; d.scale_lines = lines; d.maxima = mx; return d; };
    Q.rows = side(rows, q.data(), kp, s.data(), m4, nk, mr.data()); Q.columns = side(cols, qt.data(), mp, st.data(), k4, nm, mc.data());
    if (partial) { part.assign(size_t(nm) * k, -1); Q.partial = part.data(); } }
  void show() { dump("q", q.data(), q.size()); dump("qt", qt.data(), qt.size()); dump("s", s.data(), 4 * s.size()); dump("st", st.data(), 4 * st.size()); dump("part", part.data(), 4 * part.size()); } };
template <class T, Activation A, bool plain> void quant(int m, int k, int pad, int rows, int cols, Fp8Format f, bool pow2, bool partial, bool factor, bool odd) {
  int stride = up(k, 8) + pad; auto x = make<T>(m, stride, 1, odd), fa = make<T>(m, stride, 2, false); Fp8Quantize Q{}; Q.dtype = sizeof(T) == 2 ? DType::kBFloat16 : DType::kFloat32; Q.activation = A; Q.format = f; Q.power_of_two = pow2; Q.m = m; Q.k = k; Q.x = x.data(); Q.x_stride = stride; if (factor) Q.factor = fa.data(), Q.factor_stride = stride; Q.vectors = pad == 0;
  Out o; o.set(Q, m, k, rows, cols, partial); int tiles = up(m, 128) / 128 * (up(k, 128) / 128);
  printf("quantize %d %d pad %d rows %d cols %d\n", m, k, pad, rows, cols); emulated::run_cluster(tiles, 1, 256, kQuantizeSharedBytes<T>, [&] { fp8_quantize_kernel<T, int(A), plain>(Q, false); }); o.show(); }
template <class T, Activation A, bool factor> void rowsk(int m, int k, Fp8Format f, bool pow2) { int stride = up(k, 8); auto x = make<T>(m, stride, 1, true), fa = make<T>(m, stride, 2, false); Fp8Quantize Q{}; Q.dtype = DType::kBFloat16; Q.activation = A; Q.format = f; Q.power_of_two = pow2; Q.m = m; Q.k = k; Q.x = x.data(); Q.x_stride = stride; if (factor) Q.factor = fa.data(), Q.factor_stride = stride; Q.vectors = true; Out o; o.set(Q, m, k, 3, 0, false);
  printf("rows %d %d\n", m, k); emulated::run_cluster(up(m, kRowsTile) / kRowsTile * (up(k, 128) / 128), 1, 256, 1024, [&] { fp8_rows_kernel<T, int(A), factor>(Q); }); o.show(); }
template <class T, Activation A, bool gated> void hidden(int m, int k, int grid, Fp8Format f) { int stride = up(k, 8) + 8; auto a = make<T>(m, stride, 1, false), b = make<T>(m, stride, 2, false), c = make<T>(m, stride, 3, false); Fp8Hidden h; h.gated = gated; h.activation = A; h.m = m; h.k = k; Out o[3]; Fp8Quantize* q[3] = {&h.gradient, &h.saved, &h.factor}; std::vector<T>* d[3] = {&a, &b, &c};
  for (int i = 0; i < (gated ? 3 : 2); ++i) { Fp8Quantize& Q = *q[i]; Q = {}; Q.dtype = DType::kBFloat16; Q.activation = Activation::kNone; Q.format = f; Q.m = m; Q.k = k; Q.x = d[i]->data(); Q.x_stride = stride; Q.vectors = true; o[i].set(Q, m, k, i == 1 ? 0 : 3, 4, i != 1); }
  printf("hidden %d %d\n", m, k); emulated::run_cluster(grid, 1, 256, kHiddenSharedBytes<gated>, [&] { fp8_hidden_kernel<T, int(A), gated>(h); }); for (int i = 0; i < (gated ? 3 : 2); ++i) o[i].show(); }
int main() { using B = __nv_bfloat16; auto E4 = Fp8Format::kE4M3, E5 = Fp8Format::kE5M2; constexpr auto N = Activation::kNone; constexpr auto S = Activation::kSilu;
  quant<B, N, true>(256, 256, 0, 3, 4, E4, false, false, false, false); quant<B, N, true>(300, 264, 0, 3, 3, E4, true, true, false, true); quant<B, N, true>(130, 77, 1, 3, 4, E5, false, true, false, true); quant<__half, S, false>(200, 136, 0, 2, 1, E4, false, false, true, false);
  quant<float, N, true>(260, 140, 0, 3, 4, E5, true, true, false, true); quant<float, N, true>(131, 256, 3, 1, 2, E4, false, false, false, false); quant<B, N, true>(129, 128, 0, 0, 4, E4, false, false, false, false);
  rowsk<B, N, false>(70, 264, E4, false); rowsk<__half, S, true>(70, 264, E5, true);
  hidden<B, S, true>(260, 200, 2, E4); hidden<__half, S, false>(130, 133, 3, E5); hidden<B, S, false>(256, 256, 1, E4); }
