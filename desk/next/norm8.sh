#!/usr/bin/env bash
# Norms that quantise (patch norm8): about 85 s on one GPU (35 rates, 35 tests and sanitizers, 15 ncu); MAIN=path of an installed copy without the patch adds 30 s of its rates.
# Expected: no BAD; rms 8192x4096 and 16384x2048 >= .85 of copy (H100 .77, H200 .62 before); quantise not slower than before; sanitizers clean; ncu inst_executed about 17.7e6 (26.7e6 before).
here=$(cd "$(dirname "$0")" && pwd); OUT=${OUT:-/tmp/out}; mkdir -p "$OUT/norm8"; T0=$SECONDS; t() { echo "## $1 rc $2 at $((SECONDS-T0)) s"; }
[ -n "$MAIN" ] && { PYTHONPATH=$MAIN:$PYTHONPATH timeout 60 python3 "$here/norm8.py" 2>&1 | cut -c1-220 | grep -v "^ok" | sed 's/^/main /'; t main $?; }
timeout 60 python3 "$here/norm8.py" 2>&1 | cut -c1-220 | tail -14; t rates $?
cat > /tmp/n8once.py <<'Q'
import sys, torch, fusedops
m, k, rms, res = (int(v) for v in sys.argv[1:5])
x, r = (torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(2))
w = torch.randn(k, device="cuda", dtype=torch.bfloat16)
for _ in range(2): torch.ops.fusedops._fp8_norm(x, r if res else None, w, None if rms else w, bool(rms), 1e-5, 0, 3, 4, False)
torch.cuda.synchronize()
Q
S="timeout 100 compute-sanitizer --error-exitcode 9"
for a in "synccheck 8200 2056 1 0" "racecheck 8200 2056 1 0" "synccheck 16400 2056 0 0" "memcheck 8200 2056 1 0"; do set -- $a
  ($S --tool $1 python3 /tmp/n8once.py $2 $3 $4 $5 > "$OUT/norm8/$1_$4.txt" 2>&1; echo "$a rc $?: $(tail -n 1 "$OUT/norm8/$1_$4.txt" | cut -c1-120)") & done
timeout 80 python3 -m pytest -q -n 4 -m gpu -p no:cacheprovider tests/fp8/test_fp8_norm.py 2>&1 | grep -E "^(FAILED|ERROR)|passed|failed" | cut -c1-150 | tail -6; wait; t tests $?
M=launch__grid_size,launch__registers_per_thread,gpu__time_duration.sum,sm__inst_executed.avg.per_cycle_elapsed,sm__warps_active.avg.per_cycle_active,smsp__inst_executed.sum
for s in barrier long_scoreboard short_scoreboard lg_throttle mio_throttle math_pipe_throttle no_instruction wait not_selected; do M=$M,smsp__average_warps_issue_stalled_${s}_per_issue_active.ratio; done
timeout 40 ncu --launch-skip 1 --launch-count 1 -k regex:fp8_norm --metrics $M python3 /tmp/n8once.py 8192 4096 1 0 > "$OUT/norm8/ncu.txt" 2>&1
echo "ncu: $(grep __ "$OUT/norm8/ncu.txt" | awk '{n=$1; sub(/.*stalled_/,"",n); sub(/_per_issue.*/,"",n); sub(/\..*/,"",n); printf "%s %s, ", n, $NF}' | cut -c1-420)"; t ncu $?
