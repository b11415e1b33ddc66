#include "csrc/cuda/fp8/norm/fp8_norm.cuh"
#include <random>
#include <vector>
using namespace fusedops;
static int bad = 0;
template <class T, bool kRms> void run(int m, int k, int cluster, int slots, int clusters, bool residual, int wide, Fp8Format format, bool pow2, int sides, int odd, unsigned seed) {
  std::mt19937 g(seed); std::normal_distribution<float> n(0, 1);
  const int stride = k + 8;
  std::vector<T> x(size_t(m) * stride), res(size_t(m) * stride), sum(size_t(m) * k); std::vector<T> w(k), b(k); std::vector<float> wf(k), bf(k);
  const float shift = kRms ? 0 : 3;
  for (auto& v : x) v = from_compute<T>(n(g) + shift); for (auto& v : res) v = from_compute<T>(n(g));
  for (int i = 0; i < k; ++i) { wf[i] = n(g), bf[i] = n(g); w[i] = from_compute<T>(wf[i]), b[i] = from_compute<T>(bf[i]); }
  if (odd) { for (int i = 0; i < 300 && i < m; ++i) { int r = g() % m, c = g() % k; x[size_t(r) * stride + c] = from_compute<T>(i % 3 == 0 ? INFINITY : i % 3 == 1 ? NAN : 60000.f); if (i > 3) break; } for (int c = 0; c < k; ++c) x[size_t(m / 2) * stride + c] = from_compute<T>(0.f); }
  auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b * b; };
  const int nk = up(k, 128) / 128, nm = up(m, 128) / 128; const int64_t kp = up(k, 16), mp = up(m, 16), m4 = up(m, 4);
  std::vector<uint8_t> q(m * kp, 0x77), qt(k * mp, 0x77); std::vector<float> s(nk * m4, -1), st(nk * nm, -1), rstd(m, -1), mean(m, -1);
  Fp8Norm p; p.quantize = {}; auto& Q = p.quantize; Q.dtype = DType::kBFloat16; Q.format = format; Q.power_of_two = pow2; Q.m = m; Q.k = k; Q.x = x.data(); Q.x_stride = stride; Q.vectors = true;
  if (sides & 1) Q.rows = {Fp8Scaling::kBlock, q.data(), kp, kp, s.data(), m4, m4};
  if (sides & 2) Q.columns = {Fp8Scaling::kTile, qt.data(), mp, mp, st.data(), nk, nk};
  Q.columns.scale_pitch = nm; // see allocate_side: (k/128, m/128)
  p.rms = kRms; p.eps = 1e-5f; if (wide != 2) { p.weight = wide ? (void*)wf.data() : (void*)w.data(); if (!kRms) p.bias = wide ? (void*)bf.data() : (void*)b.data(); } p.wide_parameters = wide == 1;
  if (residual) p.residual = res.data(), p.residual_stride = stride, p.sum = sum.data();
  if (!kRms) p.mean = mean.data(); p.rstd = rstd.data(); p.cluster = cluster; p.slots = slots;
  emulated::run_cluster(clusters * cluster, cluster, kTileThreads, norm_shared_bytes<kRms>(slots), [&] { fp8_norm_kernel<T, kRms>(p); });
  // reference
  long wrong = 0; double worst = 0;
  std::vector<float> y(size_t(m) * k);
  for (int r = 0; r < m; ++r) {
    double sq = 0, mu = 0; std::vector<float> v(k);
    for (int c = 0; c < k; ++c) { v[c] = to_compute(x[size_t(r) * stride + c]); if (residual) { T t = from_compute<T>(v[c] + to_compute(res[size_t(r) * stride + c])); v[c] = to_compute(t); if (memcmp(&t, &sum[size_t(r) * k + c], 2)) wrong++; } mu += v[c]; }
    mu = kRms ? 0 : mu / k; for (int c = 0; c < k; ++c) sq += (v[c] - mu) * (v[c] - mu);
    double e = 1 / sqrt(sq / k + 1e-5); if (std::isfinite(e) && e > 0) worst = std::max(worst, std::abs(rstd[r] / e - 1)); else if (std::isfinite(e) != std::isfinite(rstd[r]) || (e == 0 && rstd[r] != 0)) wrong += 1000;
    if (!kRms && std::isfinite(mu)) worst = std::max(worst, std::abs(mean[r] - mu) / 3);
    for (int c = 0; c < k; ++c) { float wt = wide == 2 ? 1 : wide ? wf[c] : to_compute(w[c]), bs = wide == 2 ? 0 : wide ? bf[c] : to_compute(b[c]);
      float o = kRms ? v[c] * rstd[r] * wt : fmaf((v[c] - mean[r]) * rstd[r], wt, bs); y[size_t(r) * k + c] = to_compute(from_compute<T>(o)); } }
  const float largest = largest_value(format);
  auto scale_of = [&](float mx, bool nan, float& inv) { if (nan || std::isinf(mx)) { inv = 0; return NAN; } mx = std::max(mx, 0x1p-100f); float sc = mx / largest; inv = largest / mx; if (pow2) { uint32_t u = __builtin_bit_cast(uint32_t, sc); u = (u + 0x7fffff) & 0xff800000; sc = __builtin_bit_cast(float, u); inv = 1 / sc; } return sc; };
  auto conv = [&](float v) { return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, format == Fp8Format::kE4M3 ? __NV_E4M3 : __NV_E5M2); };
  auto same = [](float a, float b) { return (a != a && b != b) || a == b; };
  for (int bm = 0; bm < nm; ++bm) for (int bk = 0; bk < nk; ++bk) {
    float tile = 0; bool tnan = false;
    for (int r = bm * 128; r < std::min(m, bm * 128 + 128); ++r) { float mx = 0; bool nan = false;
      for (int c = bk * 128; c < std::min(k, bk * 128 + 128); ++c) { float a = std::fabs(y[size_t(r) * k + c]); if (a != a) nan = true; else mx = std::max(mx, a); }
      tile = std::max(tile, mx), tnan |= nan;
      if (sides & 1) { float inv, sc = scale_of(mx, nan, inv); if (!same(sc, s[bk * m4 + r])) wrong++;
        for (int c = bk * 128; c < std::min<int>(kp, bk * 128 + 128); ++c) { uint8_t want = c < k ? conv(y[size_t(r) * k + c] * inv) : 0, got = q[r * kp + c]; if (want != got && !((want & 0x7f) == 0x7f && (got & 0x7f) == 0x7f)) wrong++; } } }
    if (sides & 2) { float inv, sc = scale_of(tile, tnan, inv); if (!same(sc, st[bk * nm + bm])) wrong++;
      for (int c = bk * 128; c < std::min(k, bk * 128 + 128); ++c) for (int r = bm * 128; r < std::min<int>(mp, bm * 128 + 128); ++r) { uint8_t want = r < m ? conv(y[size_t(r) * k + c] * inv) : 0, got = qt[c * mp + r]; if (want != got && !((want & 0x7f) == 0x7f && (got & 0x7f) == 0x7f)) wrong++; } }
  }
  for (int bk = 0; bk < nk && (sides & 1); ++bk) for (int r = m; r < m4; ++r) { float inv; if (!same(s[bk * m4 + r], scale_of(0, false, inv))) wrong++; }
  const bool fail = wrong || worst > 2e-6; bad += fail;
  printf("%s %s %dx%d cluster %d slots %d clusters %d res %d wide %d fmt %d pow2 %d sides %d odd %d: wrong %ld, statistic %.1e\n", fail ? "BAD" : "ok", kRms ? "rms" : "ln", m, k, cluster, slots, clusters, residual, wide, int(format), pow2, sides, odd, wrong, worst); fflush(stdout);
}
int main(int argc, char** argv) {
  using B = __nv_bfloat16; const auto E4 = Fp8Format::kE4M3, E5 = Fp8Format::kE5M2;
  for (unsigned seed = 1; seed <= (argc > 1 ? atoi(argv[1]) : 1); ++seed) {
    run<B, true>(600, 1024, 4, 3, 2, false, 0, E4, false, 3, 0, seed);
    run<B, true>(330, 1032, 8, 3, 1, true, 1, E4, false, 3, 0, seed);
    run<B, true>(385, 520, 2, 4, 1, false, 2, E5, true, 3, 1, seed);
    run<__half, true>(261, 776, 4, 3, 1, false, 1, E4, true, 3, 1, seed);
    run<B, false>(390, 1040, 4, 4, 1, false, 0, E4, false, 3, 0, seed);
    run<B, false>(260, 1040, 8, 2, 1, true, 1, E5, false, 3, 1, seed);
    run<B, true>(300, 2056, 16, 3, 1, false, 0, E4, false, 3, 0, seed);
    run<B, true>(300, 520, 4, 2, 1, false, 0, E4, false, 1, 0, seed);
    run<B, true>(520, 520, 4, 3, 1, false, 0, E4, false, 2, 1, seed);
    run<__half, false>(129, 512, 4, 3, 2, false, 2, E4, false, 2, 0, seed);
    run<B, true>(200, 1536, 4, 6, 1, false, 0, E4, false, 3, 0, seed);
  }
  printf(bad ? "BAD %d\n" : "all ok\n", bad);
}
