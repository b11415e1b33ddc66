# expected seconds: 200 (one GPU, sm_90a). Branch points: backward of narrow layers by WGMMA, gathers in whole sectors, inference kernels with gathered rows. Tests, errors, times beside main's, profiles, sanitizers.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
OUT=${OUT:-/tmp/points}; mkdir -p "$OUT/points"; NEW=${NEW:-/tmp/fo} OLD=${OLD:-/tmp/fo2}
timeout 60 python3 "$here/points.py" 2>&1 | cut -c1-220 | tail -10
timeout 60 python3 "$here/points.py" grads 2>&1 | cut -c1-200 | tail -6
set -f
for c in "step *" "infer *" "fwd sa/*"; do set -- $c
  PYTHONPATH=$NEW:$SITE timeout 60 python3 -m fusedops bench pointnet --case "$2" --pass $1 --peers eager --dtype bf16 --out "$OUT/points/" 2>&1 | grep -E "ours [0-9]" | sed 's/.*pointnet //' | cut -c1-84
done
timeout 60 python3 "$here/points_prof.py" "$OUT/points/prof.txt" 2>&1 | grep ERR
(timeout 90 python3 -m pytest -q -p no:cacheprovider -n 8 tests/points/test_edge_kernels.py tests/points/test_edge_fakes.py > "$OUT/points_tests.txt" 2>&1; grep -E "^FAILED|^ERROR|passed|failed" "$OUT/points_tests.txt" | cut -c1-160 | sort -u | tail -8)
timeout 60 ncu --kernel-name regex:edge_wgmma --section SpeedOfLight --section WarpStateStats --section SchedulerStats --section Occupancy --section MemoryWorkloadAnalysis --section InstructionStats python3 "$here/points.py" ncu > "$OUT/points/ncu.txt" 2>&1; tail -1 "$OUT/points/ncu.txt" | cut -c1-150
for tool in memcheck racecheck; do timeout 60 compute-sanitizer --tool $tool --error-exitcode 1 python3 "$here/points.py" san 2>&1 | tail -1; done
