#!/usr/bin/env bash
# Norms that quantise by two reads of x (branch norm8): about 45 s on one GPU (probes compile beside the timings). OLD, NEW: installed copies of main and next; SITE: pytest.
# Expected: no BAD; NEW's shares of a copy above OLD's (clusters); then the kernel alone at distances of 60 to 420 blocks.
here=$(cd "$(dirname "$0")" && pwd); OUT=${OUT:-/tmp/out}; mkdir -p "$OUT/norm8"; T0=$SECONDS; t() { echo "## $1 rc $2 at $((SECONDS-T0)) s"; }
tree=$PWD; W=/tmp/n8v; rm -rf $W; mkdir -p $W; D=csrc/cuda/fp8/norm; A=$D/fp8_norm_launch
variant() { # NAME sed-program
  mkdir -p $W/$1/csrc/cuda; cp -r $tree/csrc/cuda/fp8 $W/$1/csrc/cuda/; sed -i -E "$2" $W/$1/$A.cu
  timeout 120 nvcc -std=c++20 -O3 -arch=sm_90a -w -I$W/$1 -I$tree -DKERNEL="\"$A.cu\"" -DAHEAD --expt-relaxed-constexpr -o $W/$1/probe "$here/norm8_ahead.cu" > $W/$1/log 2>&1 || tail -2 $W/$1/log
}
for n in 60 100 140 200 280 420; do variant $n "s/kBlocksAhead = 200/kBlocksAhead = $n/" & done
for o in OLD NEW; do echo "# $o"; [ -n "${!o}" ] && PYTHONPATH=${!o}:$SITE timeout 60 python3 "$here/norm8.py" 2>&1 | cut -c1-220 | tail -12; t "$o" $?; done
wait; t compiled 0
for n in 60 100 140 200 280 420; do timeout 40 $W/$n/probe 2>&1 | sed "s/^/$n /" | cut -c1-200 | tee "$OUT/norm8/$n.txt" | head -n $([ $n = 200 ] && echo 6 || echo 2); done; t probes $?
