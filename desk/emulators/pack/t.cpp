#include "csrc/cutlass/passes/pack.cuh"
 
 
 
using namespace fusedops;
template <class T> int test() {
  std::mt19937 g(7); int bad = 0, runs = 0;
  for (int t = 0; t < 400; ++t) {
    int rows = 1 + g() % 37, cols = 1 + g() % 70; constexpr int V = 16 / sizeof(T);
    int rs = (cols + V - 1) / V * V;  // padded rows, as ld is
    int head = g() % V;
    std::vector<T> src(size_t(rows) * rs + 64), mem(size_t(rows) * cols + 64, T(0xABCD));
    T* s = (T*)((uintptr_t(src.data()) + 15) / 16 * 16);
    for (int i = 0; i < rows * rs; ++i) s[i] = T(g());
    T* o = (T*)((uintptr_t(mem.data()) + 15) / 16 * 16) + head;
    // source must not be read past rows*rs
    int64_t before = elements_behind_unit(o);
    int64_t vectors = (before + int64_t(rows) * cols + V - 1) / V;
    int blocks = (vectors + kPackThreads - 1) / kPackThreads;
    emulated::run(dim3(blocks), dim3(kPackThreads), 0, [&] { unpack_rows_kernel<T>(s, o, rows, cols, rs); });
    for (int r = 0; r < rows; ++r) for (int c = 0; c < cols; ++c) bad += o[r * cols + c] != s[r * rs + c];
    for (T* p = mem.data(); p < mem.data() + mem.size(); ++p) if (p < o || p >= o + rows * cols) bad += *p != T(0xABCD);
    ++runs;
  }
  printf("%d runs, %d bad\n", runs, bad); return bad;
}
int main() { return test<uint16_t>() + test<uint32_t>(); }
