#include "csrc/cutlass/kernels/unaligned/unaligned.h"
#include "csrc/cutlass/passes/pack.h"
#include "csrc/common/device/vec.cuh"
#include <sys/mman.h>
#include <random>
#include <vector>
#include <cstring>
using namespace fusedops;
std::mt19937 rng(7);
float normal() { static std::normal_distribution<float> d; return d(rng); }
// Memory that ends (or begins) at a page nobody may touch.
struct Guarded {
  size_t pages; char* base; char* data;
  Guarded(size_t bytes, bool at_end, size_t offset) {
    pages = (bytes + offset + 8192) / 4096 + 3;
    base = (char*)mmap(nullptr, pages * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(base + 4096, (pages - 2) * 4096, PROT_READ | PROT_WRITE);
    std::memset(base + 4096, 0xff, (pages - 2) * 4096);  // NaN around
    data = at_end ? base + (pages - 1) * 4096 - bytes : base + 4096 + offset;
  }
  ~Guarded() { munmap(base, pages * 4096); }
};
int failures = 0, cases = 0;
struct Case { int tile; int64_t m, n, k; Major a, b; int64_t pad_a, pad_b; bool end; int offset, off_d; Epilogue e; int64_t slice_k; Activation act; bool bias; int64_t pad_d; };
template <class T> void run(DType dt, const Case& c) {
  const bool ak = c.a == Major::kK, bk = c.b == Major::kK;
  const int64_t lda = (ak ? c.k : c.m) + c.pad_a, ldb = (bk ? c.k : c.n) + c.pad_b;
  const int64_t la = ak ? c.m : c.k, lb = bk ? c.n : c.k;
  Guarded ga(((la - 1) * lda + (ak ? c.k : c.m)) * 2, c.end, c.offset * 2), gb(((lb - 1) * ldb + (bk ? c.k : c.n)) * 2, c.end, (c.offset + 3) % 8 * 2);
  T *A = (T*)ga.data, *B = (T*)gb.data;
  for (int64_t i = 0; i < c.m; ++i) for (int64_t k = 0; k < c.k; ++k) A[ak ? i * lda + k : k * lda + i] = from_compute<T>(normal());
  for (int64_t i = 0; i < c.n; ++i) for (int64_t k = 0; k < c.k; ++k) B[bk ? i * ldb + k : k * ldb + i] = from_compute<T>(normal());
  std::vector<T> bias(c.n); for (auto& v : bias) v = from_compute<T>(normal());
  GemmProblem p; p.m = c.m; p.n = c.n; p.k = c.k; p.dtype = dt; p.a = {A, lda, c.a}; p.b = {B, ldb, c.b}; p.epilogue = c.e; p.activation = c.act; p.bias = c.bias ? bias.data() : nullptr;
  const bool sums = c.e == Epilogue::kAccumulator;
  if (sums && c.slice_k) { p.slice_k = c.slice_k; p.slices = (c.k + c.slice_k - 1) / c.slice_k; }
  p.ldd = c.n + c.pad_d; p.slice_stride = c.m * p.ldd;
  const size_t ds = sums ? 4 : 2, dbytes = (((c.m - 1) * p.ldd + c.n) + (p.slices - 1) * p.slice_stride) * ds;
  Guarded gd(dbytes, c.end, c.off_d * ds), gz(dbytes, c.end, c.off_d * ds);
  std::vector<char> before(gd.base + 4096, gd.base + (gd.pages - 1) * 4096);
  p.d = gd.data; p.preact = gz.data;
  LaunchContext ctx{}; ctx.sm_count = 4;
  const char* e = unaligned::multiply(c.tile, p, ctx);
  bool bad = e != nullptr; double worst = 0;
  for (int64_t i = 0; i < c.m; ++i) for (int64_t j = 0; j < c.n; ++j) {
    double got = 0, s = 0, z = 0;
    for (int64_t k = 0; k < c.k; ++k) { double t = double(to_compute(A[ak ? i * lda + k : k * lda + i])) * to_compute(B[bk ? j * ldb + k : k * ldb + j]); s += t; z += std::abs(t); }
    if (!sums && c.bias) s += to_compute(bias[j]);
    const double y = c.act == Activation::kRelu && !sums ? std::max(s, 0.0) : s;
    double tol = z * 1e-5 + 1e-6; if (!sums) tol += std::abs(s) * (dt == DType::kBFloat16 ? 4.1e-3 : 5e-4);
    if (sums) for (int64_t q = 0; q < p.slices; ++q) got += ((float*)p.d)[q * p.slice_stride + i * p.ldd + j];
    else got = to_compute(((T*)p.d)[i * p.ldd + j]);
    double err = std::abs(got - y) / tol; if (!(err <= 1)) bad = true; worst = std::max(worst, err);
    if (c.e == Epilogue::kPreact && !(std::abs(to_compute(((T*)p.preact)[i * p.ldd + j]) - s) <= tol)) bad = true;
  }
  // Nothing else was written.
  const char* lo = gd.base + 4096;
  for (size_t i = 0; i < before.size(); ++i) {
    const int64_t at = lo + i - (char*)p.d;
    if (at >= 0 && at < int64_t(dbytes) && (at / int64_t(ds)) % p.ldd < c.n) continue;
    if (lo[i] != before[i]) { bad = true; std::printf("written outside at byte %ld\n", at); break; }
  }
  ++cases; failures += bad;
  if (bad || getenv("ALL")) std::printf("%s tile %d %ldx%ldx%ld a%d b%d pads %ld %ld %ld end %d off %d %d e%d slices %ld worst %.2f %s\n", bad ? "BAD" : "ok", c.tile, c.m, c.n, c.k, int(c.a), int(c.b), c.pad_a, c.pad_b, c.pad_d, c.end, c.offset, c.off_d, int(c.e), p.slices, worst, e ? e : "");
}
template <class T> void pack(int64_t rows, int64_t cols, int64_t col_stride, int64_t more_rows, int64_t more_ld, int offset, bool end) {
  const int64_t ld = (cols + 16 / sizeof(T) - 1) / (16 / sizeof(T)) * (16 / sizeof(T)) + more_ld * (16 / sizeof(T)), out_rows = rows + more_rows;
  Guarded g(((cols - 1) * col_stride + rows) * sizeof(T), end, offset * sizeof(T)), o(out_rows * ld * sizeof(T) + 64, false, 0);
  T *x = (T*)g.data, *y = (T*)o.data;
  for (int64_t i = 0; i < (cols - 1) * col_stride + rows; ++i) x[i] = T(rng());
  PackSource s{x, rows, cols, 1, col_stride};
  LaunchContext ctx{};
  const char* e = pack_operand(s, sizeof(T), y, out_rows, ld, ctx); bool bad = e != nullptr;
  for (int64_t r = 0; r < out_rows; ++r) for (int64_t c = 0; c < ld; ++c) { const T want = r < rows && c < cols ? x[r + c * col_stride] : T(0); if (y[r * ld + c] != want) bad = true; }
  for (int i = 0; i < 64; ++i) if (((unsigned char*)(y + out_rows * ld))[i] != 0xff) bad = true;
  ++cases; failures += bad; if (bad) std::printf("BAD pack %zu %ldx%ld stride %ld rows+%ld ld+%ld off %d end %d %s\n", sizeof(T), rows, cols, col_stride, more_rows, more_ld, offset, end, e ? e : "");
}
int packs(int count) {
  const auto pick = [](int n) { return int(rng() % n); };
  for (int i = 0; i < count; ++i) {
    const int64_t rows = 2 + pick(pick(2) ? 40 : 300), cols = 1 + pick(pick(2) ? 40 : 200), cs = rows + (pick(2) ? 0 : pick(20));
    const int more = pick(3) ? 0 : pick(70), ld = pick(3) ? 0 : pick(12), off = pick(8), end = pick(2);
    if (i % 3 == 0) pack<uint16_t>(rows, cols, cs, more, ld, off, end);
    if (i % 3 == 1) pack<uint32_t>(rows, cols, cs, more, ld, off, end);
    if (i % 3 == 2) pack<uint64_t>(rows, cols, cs, more, ld, off, end);
  }
  std::printf("pack: %d of %d failed\n", failures, cases);
  return failures;
}
int main(int argc, char** argv) {
  const int count = argc > 1 ? atoi(argv[1]) : 200;
  const auto pick = [](int n) { return int(rng() % n); };
  if (packs(argc > 2 ? atoi(argv[2]) : 100)) return 1;
  cases = 0;
  for (int i = 0; i < count; ++i) {
    Case c; c.tile = i % unaligned::kNumTiles;
    const auto& t = unaligned::kTiles[c.tile];
    c.m = 1 + pick(pick(3) ? t.m : t.m + 40); c.n = 1 + pick(pick(3) ? t.n : t.n + 40); c.k = 1 + pick(pick(2) ? 70 : 300);
    if (pick(4) == 0) c.m = t.m; if (pick(4) == 0) c.n = t.n; if (pick(4) == 0) c.k = 64 * (1 + pick(3));
    c.a = Major(i / 5 % 2); c.b = Major(i / 10 % 2);
    c.pad_a = pick(3) ? 0 : pick(12); c.pad_b = pick(3) ? 0 : pick(12); c.pad_d = pick(3) ? 0 : pick(9);
    c.end = pick(2); c.offset = pick(2) ? pick(8) : 0; c.off_d = pick(8);
    c.e = Epilogue(pick(3)); c.slice_k = pick(2) ? 64 * (1 + pick(2)) : 0; c.act = pick(2) ? Activation::kRelu : Activation::kNone; c.bias = pick(2);
    if (i % 2) run<__half>(DType::kFloat16, c); else run<__nv_bfloat16>(DType::kBFloat16, c);
  }
  std::printf("unaligned: %d of %d failed\n", failures, cases);
  return failures != 0;
}
extern "C" const char* cudaGetErrorString(cudaError_t) { return "error"; }
