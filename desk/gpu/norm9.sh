#!/usr/bin/env bash
# Norms that quantise (branch norm8), second run: about 110 s on one H100 (tests 25, rates 25, ncu 20, sanitizer 40 in parallel, rows 90). Needs norm9/ (rates.py, once.py, torchao.zip) beside it.
# Expected: tests pass; no BAD; clusters >= .85 of copy; sanitizer clean; norm_gated >= 1.42 of ours_bf16, >= 1.25 of torchao.
here=$(cd "$(dirname "$0")" && pwd); [ -e "$here/norm9" ] || here=/work/notes/gpu; OUT=${OUT:-/tmp/out}; mkdir -p "$OUT/norm9"
T0=$SECONDS; t() { echo "## $1 rc $2 at $((SECONDS-T0)) s"; }
timeout 90 python3 -m pytest -q -n 6 -p no:cacheprovider tests/fp8/test_fp8_norm.py > "$OUT/norm9/tests.txt" 2>&1; t tests $?; grep -E "^(FAILED|ERROR)|passed|failed" "$OUT/norm9/tests.txt" | cut -c1-160 | tail -6
timeout 80 python3 "$here/norm9/rates.py" 2>&1 | cut -c1-210 | tail -18; t rates $?
for a in "8192 4096 1 0"; do
  timeout 40 ncu --launch-skip 1 --launch-count 1 -k regex:fp8_norm --metrics launch__grid_size,launch__registers_per_thread,gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__inst_executed.avg.per_cycle_elapsed,sm__warps_active.avg.per_cycle_active,smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio,smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio,smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio,smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio,smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio,smsp__average_warps_issue_stalled_wait_per_issue_active.ratio,smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio,smsp__average_warps_issue_stalled_no_instruction_per_issue_active.ratio,smsp__average_warps_issue_stalled_branch_resolve_per_issue_active.ratio,smsp__average_warps_issue_stalled_not_selected_per_issue_active.ratio,smsp__average_warps_issue_stalled_dispatch_stall_per_issue_active.ratio,smsp__inst_executed.sum python3 "$here/norm9/once.py" $a > "$OUT/norm9/ncu.txt" 2>&1
  echo "ncu $a: $(grep -E "__" "$OUT/norm9/ncu.txt" | awk '{n=$1; sub(/.*stalled_/,"",n); sub(/_per_issue.*/,"",n); sub(/\..*/,"",n); printf "%s %s, ", n, $NF}' | cut -c1-420)"; done; t ncu $?
S="compute-sanitizer --error-exitcode 9"
(timeout 100 $S --tool memcheck python3 scripts/sanitize fp8_norm > "$OUT/norm9/mem.txt" 2>&1; echo "memcheck rc $?: $(tail -n 1 "$OUT/norm9/mem.txt")") &
(timeout 100 $S --tool synccheck python3 scripts/sanitize fp8_norm > "$OUT/norm9/sync.txt" 2>&1; echo "synccheck rc $?: $(tail -n 1 "$OUT/norm9/sync.txt")") &
(timeout 100 $S --tool racecheck bash -c "python3 $here/norm9/once.py 8200 2056 1 0 && python3 $here/norm9/once.py 16400 2056 1 1 && python3 $here/norm9/once.py 16400 2056 0 0" > "$OUT/norm9/race.txt" 2>&1; echo "racecheck rc $?: $(tail -n 1 "$OUT/norm9/race.txt"), $(grep -c "RACECHECK SUMMARY: 0 hazards" "$OUT/norm9/race.txt") of 3 clean")  &
wait; t sanitizer $?; grep -hE "^=+ (Barrier|Race|Error|Warning|Invalid)" "$OUT"/norm9/{mem,sync,race}.txt | sort | uniq -c | cut -c1-150 | head -6
B="python3 -m fusedops bench fp8"
timeout 50 $B --case '*norm/*' --pass fwd --peers compile --out "$OUT/norm9/" > "$OUT/norm9/fwd.txt" 2>&1; t rows_fwd $?; grep -vi warn "$OUT/norm9/fwd.txt" | cut -c1-140 | tail -9
mkdir -p /tmp/ao && python3 -m zipfile -e "$here/norm9/torchao.zip" /tmp/ao && export PYTHONPATH=$PYTHONPATH:/tmp/ao
for c in norm_gated; do timeout 60 $B --case "T*/$c" --pass step --peers ours_bf16,torchao --out "$OUT/norm9/" > "$OUT/norm9/$c.txt" 2>&1; t "$c" $?; grep -vi warn "$OUT/norm9/$c.txt" | cut -c1-170 | tail -3; done
