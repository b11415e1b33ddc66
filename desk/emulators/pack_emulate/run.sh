# Emulates kernels/unaligned and passes/pack of a worktree on the CPU: run.sh WORKTREE [cases]
W=$1; H=$(dirname $(realpath $0)); T=/tmp/pack_em; rm -rf $T; mkdir -p $T/csrc/cutlass
cp -r $W/csrc/common $T/csrc/; cp -r $W/csrc/cutlass/configs $W/csrc/cutlass/kernels $W/csrc/cutlass/passes $W/csrc/cutlass/problem.h $T/csrc/cutlass/
cp $W/scripts/emulate/mma.cuh $T/csrc/common/device/mma.cuh; cp $H/pdl.cuh $T/csrc/common/device/pdl.cuh
python3 - $T <<'P'
import re, sys, pathlib
t = pathlib.Path(sys.argv[1])
f = t/'csrc/common/device/activation.cuh'; s = f.read_text()
s = re.sub(r'asm\("ex2[^;]*;[^;]*;', 'r = exp2f(x);', s); s = re.sub(r'asm\("rcp[^;]*;[^;]*;', 'r = 1/x;', s); s = re.sub(r'asm\("tanh[^;]*;[^;]*;', 'r = tanhf(x);', s)
s = re.sub(r'asm\("max\.NaN[^;]*;[^;]*;', 'r = emulated::max_or_nan(z, 0.f);', s); f.write_text(s)
f = t/'csrc/cutlass/kernels/unaligned/unaligned.cuh'; s = f.read_text()
a = 'extern __shared__ __align__(128) uint4 shared_units[];'; assert a in s
f.write_text(s.replace(a, 'uint4* shared_units = reinterpret_cast<uint4*>(emulated::shared_memory());'))
P
cd $T; cat > extra.h <<'P'
#include "emulated.h"
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) { return (unsigned)(((uint64_t)hi << 32 | lo) >> (s & 31)); }
inline cudaError_t cudaGetLastError_() { return cudaSuccess; }
#define cudaGetLastError cudaGetLastError_
P
F="-std=c++20 -O1 -g -fPIC -w -fpermissive -fsanitize=alignment -fno-sanitize-recover=all -I$T -I$W/scripts/emulate -isystem ${CUDA_INC:-$(dirname $(dirname $(readlink -f $(which nvcc 2>/dev/null || ls /usr/local/cuda/bin/nvcc))))/include} -include extra.h -x c++"
nice -n 10 g++ $F -c csrc/cutlass/kernels/unaligned/unaligned_bf16.cu -o a.o && nice -n 10 g++ $F -c csrc/cutlass/kernels/unaligned/unaligned_fp16.cu -o b.o && nice -n 10 g++ $F -include csrc/common/device/vec.cuh -c $H/main.cpp -o c.o && nice -n 10 g++ $F -c csrc/cutlass/passes/pack.cu -o e.o && g++ $F -c $W/scripts/emulate/emulated.cpp -o d.o && g++ a.o b.o c.o d.o e.o -lubsan -o em && time nice -n 10 ./em ${2:-200} ${3:-300}
