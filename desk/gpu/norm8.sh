#!/usr/bin/env bash
# Norms that quantise, blocks that agree by words in memory: about 90 s on one GPU (probes compile beside it). OLD, NEW: installed copies of main and next; SITE: pytest.
# Expected: no BAD; as clusters before (H200: rms 8192x4096 50 us, ln 61); of the probes: words faster than clusters or not; 154 tests pass; sanitizers clean.
here=$(cd "$(dirname "$0")" && pwd); OUT=${OUT:-/tmp/out}; mkdir -p "$OUT/norm8"; T0=$SECONDS; t() { echo "## $1 rc $2 at $((SECONDS-T0)) s"; }
tree=$PWD; W=/tmp/n8v; rm -rf $W; mkdir -p $W; D=csrc/cuda/fp8/norm
variant() { # NAME sed-program file...
  n=$1; mkdir -p $W/$n/$D; cp $tree/$D/* $W/$n/$D/; s=$2; shift 2; for f in "$@"; do sed -i -E "$s" $W/$n/$D/$f; done
  timeout 120 nvcc -std=c++20 -O3 -arch=sm_90a -w -I$W/$n -I$PWD -DKERNEL="\"$D/fp8_norm_launch.cu\"" --expt-relaxed-constexpr -o $W/$n/probe "$here/norm8_probe.cu" > $W/$n/log 2>&1 || tail -2 $W/$n/log
}
variant words 's/kClusters = true/kClusters = false/' fp8_norm_launch.cu &
variant clusters 's/^$//' &
variant at8 's/kClusters = true/kClusters = false/; s/kPartsAtOnce = 4/kPartsAtOnce = 8/' fp8_norm_launch.cu row_words.cuh &
variant nap 's/kClusters = true/kClusters = false/; s/^( +)while \(!read_round\((.*)$/\1while (!read_round(\2 __nanosleep(100);/' fp8_norm_launch.cu row_words.cuh &
variant free 's/kClusters = true/kClusters = false/; s/return uint32_t\(word >> 32\) == round;/return true;/' fp8_norm_launch.cu row_words.cuh &
PP=${NEW:-}; [ -n "$NEW" ] && export PYTHONPATH=$NEW:$SITE
timeout 60 python3 "$here/norm8.py" 2>&1 | cut -c1-220 | tail -12; t rates $?
timeout 80 python3 -m pytest -q -n 8 -m gpu -p no:cacheprovider tests/fp8/test_fp8_norm.py tests/fp8/test_fp8_export.py -k "test_fp8_norm or (cuda and block and non_strict)" 2>&1 | grep -E "^(FAILED|ERROR)|passed|failed" | cut -c1-150 | tail -6; t tests $?
wait
for n in words clusters at8 nap free; do timeout 40 $W/$n/probe 2>&1 | sed "s/^/$n /" | cut -c1-200 > "$OUT/norm8/$n.txt"; done; cat "$OUT"/norm8/{words,clusters,at8}.txt; head -n 3 "$OUT/norm8/nap.txt"; head -n 4 "$OUT/norm8/free.txt"; t probes $?
cat > /tmp/n8once.py <<'P'
import sys, torch, fusedops
m, k, rms, res = (int(v) for v in sys.argv[1:5])
x, r = (torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(2))
w = torch.randn(k, device="cuda", dtype=torch.bfloat16)
for _ in range(2): torch.ops.fusedops._fp8_norm(x, r if res else None, w, None if rms else w, bool(rms), 1e-5, 0, 3, 4, False)
torch.cuda.synchronize()
P
S="timeout 60 compute-sanitizer --error-exitcode 9"
for a in "synccheck 8200 2056 1 0" "racecheck 8200 2056 1 0" "synccheck 16400 2056 0 0" "memcheck 8200 2056 1 0"; do set -- $a
  ($S --tool $1 python3 /tmp/n8once.py $2 $3 $4 $5 > "$OUT/norm8/$1_$4.txt" 2>&1; echo "$a rc $?: $(tail -n 1 "$OUT/norm8/$1_$4.txt" | cut -c1-120)") & done; wait; t sanitizers 0
M=launch__grid_size,gpu__time_duration.sum,sm__inst_executed.avg.per_cycle_elapsed,sm__warps_active.avg.per_cycle_active,smsp__inst_executed.sum,dram__bytes_read.sum,dram__bytes_write.sum,lts__t_sectors.sum,sm__cycles_active.avg,sm__cycles_elapsed.max
for s in barrier long_scoreboard short_scoreboard lg_throttle mio_throttle math_pipe_throttle no_instruction wait not_selected membar branch_resolve sleeping dispatch_stall drain; do M=$M,smsp__average_warps_issue_stalled_${s}_per_issue_active.ratio; done
for a in "8192 4096 1 0" "8192 4096 0 0" "8192 4096 1 1"; do
timeout 40 ncu --launch-skip 1 --launch-count 1 -k regex:fp8_norm_kernel --metrics $M python3 /tmp/n8once.py $a > "$OUT/norm8/ncu.txt" 2>&1
echo "ncu $a: $(grep __ "$OUT/norm8/ncu.txt" | awk '{n=$1; sub(/.*stalled_/,"",n); sub(/_per_issue.*/,"",n); sub(/\..*/,"",n); printf "%s %s, ", n, $NF}' | cut -c1-560)"; done; t ncu $?
