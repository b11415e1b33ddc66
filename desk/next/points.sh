# expected seconds: 90 (one GPU, sm_90a). Patch points merged (3 commits): inference of three layers over edges by kernels of their own; centres of the last hidden layer alone; dW beside the activation. Tests, errors and times beside main's kernels, rows, sanitizers.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
OUT=${OUT:-/tmp/points}; mkdir -p "$OUT"
timeout 75 python3 -m pytest -q -p no:cacheprovider -n 10 tests/points/test_edge_kernels.py > "$OUT/points_tests.txt" 2>&1; grep -E "^FAILED|^ERROR|passed|failed" "$OUT/points_tests.txt" | cut -c1-180 | tail -8
timeout 60 python3 "$here/points.py" 2>&1 | cut -c1-220 | tail -10
set -f
for c in "infer ssg_cls*" "infer msg_seg*" "fwd sa/*" "step ssg_cls*" "step msg_seg*" "step sa/*"; do set -- $c
  timeout 40 python3 -m fusedops bench pointnet --case "$2" --pass $1 --peers eager --dtype bf16 --out "$OUT/points/" 2>&1 | grep -E "ours [0-9]" | sed 's/.*pointnet //' | cut -c1-110
done
for tool in memcheck racecheck; do timeout 60 compute-sanitizer --tool $tool --error-exitcode 1 python3 "$here/points.py" san 2>&1 | tail -1; done
