# Emulates kernels/thin of a worktree on the CPU: run.sh WORKTREE
W=$1; H=$(dirname $(realpath $0)); T=/tmp/thin_em; rm -rf $T; mkdir -p $T/csrc/cutlass/configs $T/csrc/cutlass/kernels
cp -r $W/csrc/common $T/csrc/; cp $W/csrc/cutlass/configs/thin_problem.h $T/csrc/cutlass/configs/; cp -r $W/csrc/cutlass/kernels/thin $T/csrc/cutlass/kernels/
cp $W/scripts/emulate/mma.cuh $T/csrc/common/device/mma.cuh; cp $H/pdl.cuh $T/csrc/common/device/pdl.cuh
python3 - $T <<'P'
import re, sys, pathlib
t = pathlib.Path(sys.argv[1])
f = t/'csrc/common/device/activation.cuh'; s = f.read_text()
s = re.sub(r'asm\("ex2[^;]*;[^;]*;', 'r = exp2f(x);', s); s = re.sub(r'asm\("rcp[^;]*;[^;]*;', 'r = 1/x;', s); s = re.sub(r'asm\("tanh[^;]*;[^;]*;', 'r = tanhf(x);', s)
s = re.sub(r'asm\("max\.NaN[^;]*;[^;]*;', 'r = emulated::max_or_nan(z, 0.f);', s); f.write_text(s)
f = t/'csrc/cutlass/kernels/thin/thin_tile.cuh'; s = f.read_text()
a = s.index('template <int kUnit>\n__device__ __forceinline__ void copy_unit'); b = s.index('// ---- global memory ----')
s = s[:a] + '''template <int kUnit> void copy_unit(uint32_t* shared, const void* source, int bytes) {
  if ((uintptr_t)source % kUnit || (uintptr_t)shared % kUnit || bytes < 0 || bytes > kUnit) { std::fprintf(stderr, "copy: %p %p %d of %d\\n", (void*)shared, source, bytes, kUnit); std::abort(); }
  std::memcpy(shared, source, bytes); std::memset((char*)shared + bytes, 0, kUnit - bytes); }
inline void commit_copies() {}
template <int> void wait_copies() {}
''' + s[b:]
f.write_text(s)
for n in ('thin_rows.cuh', 'thin_sums.cuh'):
    f = t/'csrc/cutlass/kernels/thin'/n; s = f.read_text()
    f.write_text(s.replace('extern __shared__ __align__(16) uint32_t shared_words[];', 'uint32_t* shared_words = reinterpret_cast<uint32_t*>(emulated::shared_memory());'))
P
cd $T; F="-std=c++20 -O2 -fPIC -w -fpermissive -fsanitize=alignment -fno-sanitize-recover=all -I$T -I$W/scripts/emulate -isystem ${CUDA_INC:-$(dirname $(dirname $(readlink -f $(which nvcc 2>/dev/null || ls /usr/local/cuda/bin/nvcc))))/include} -include emulated.h -x c++"
g++ $F -c csrc/cutlass/kernels/thin/thin_rows.cu -o a.o & g++ $F -c csrc/cutlass/kernels/thin/thin_sums.cu -o b.o & wait
g++ $F -include csrc/common/device/vec.cuh -c $H/main.cpp -o c.o && g++ $F -c $W/scripts/emulate/emulated.cpp -o d.o && g++ a.o b.o c.o d.o -lubsan -o thin && time ./thin
