. .carry/lanes.sh
S() { n=$1; t=$2; tool=$3; shift 3; timeout $t compute-sanitizer --tool $tool --print-limit 6 python3 scripts/sanitize "$@" > $O/$n.txt 2>&1; echo "$n rc $? at $SECONDS"; }
( PYTORCH_NO_CUDA_MEMORY_CACHING=1 S mem_thin 200 memcheck thin ) > $L/a.txt 2>&1 &
( PYTORCH_NO_CUDA_MEMORY_CACHING=1 S init_hidden 90 initcheck fp8_hidden ) > $L/c.txt 2>&1 &
( PYTORCH_NO_CUDA_MEMORY_CACHING=1 S init_reduce 60 initcheck reduce --part 1/30 ) > $L/d.txt 2>&1 &
( PYTORCH_NO_CUDA_MEMORY_CACHING=1 S init_gemm 60 initcheck gemm --part 1/60 ) > $L/e.txt 2>&1 &
( PYTORCH_NO_CUDA_MEMORY_CACHING=1 S init_edges 60 initcheck edges --part 1/12 ) > $L/e2.txt 2>&1 &
( PYTORCH_NO_CUDA_MEMORY_CACHING=1 S init_kernels 60 initcheck kernels --part 1/60 ) > $L/e3.txt 2>&1 &
( S race_norm 200 racecheck fp8_norm --no-clusters ) > $L/f.txt 2>&1 &
( S race_e5 240 racecheck edges --no-clusters --part 5/12 ) > $L/g.txt 2>&1 &
( wait $IRPID; while ! tail -1 /tmp/ir.log | grep -q done; do sleep 2; done; PYTORCH_NO_CUDA_MEMORY_CACHING=1 S mem_epi 150 memcheck epilogue ) > $L/b.txt 2>&1 &
finish 205
pkill -9 -f scripts/sanitize; sleep 2
bash .carry/next/points_prof.sh > $L/prof.txt 2>&1; tail -10 $L/prof.txt
step norm8 100
for f in a b c d e e2 e3 f g; do echo "##### $f"; cat $L/$f.txt; done
for f in mem_thin mem_epi init_hidden init_reduce init_gemm init_edges init_kernels; do echo "#### $f"; grep -v "Saved host\|Host Frame: \[\|Host Frame: _\?Py" $O/$f.txt | cut -c1-180 | head -30; done
pack
