# rows.sh: about 150 s. Issue 30, second round: known losers and random shapes against torch and main ($OLD); which form of softmax and elementwise kernels is sooner (rows_probe.cu, beside this script); tests, sanitizers.
OUT=${OUT:-/tmp/out}; mkdir -p "$OUT/rows"; PY=${PY:-python3}; HERE=$(cd "$(dirname "$0")" && pwd); SITE=${SITE:-/tmp/site}; TREE=${TREE:-$PWD}
(nvcc -O3 -std=c++20 --expt-relaxed-constexpr --expt-extended-lambda -diag-suppress=177,20012,20013,20015 -Xptxas=-w -gencode=arch=compute_90a,code=sm_90a -I "$TREE" -x cu "$HERE/rows_probe.cu" -o /tmp/rows_probe > "$OUT/rows/nvcc.txt" 2>&1) &
PYTHONPATH=$NEW:$SITE timeout 80 $PY "$HERE/rows.py" time "$OUT/rows/new.json" torch 2>&1 | grep -E "^(WRONG|FAILED)|Error" | cut -c1-110 | tail -8
PYTHONPATH=$OLD:$SITE timeout 60 $PY "$HERE/rows.py" time "$OUT/rows/old.json" > "$OUT/rows/old.txt" 2>&1
wait; timeout 30 /tmp/rows_probe > "$OUT/rows/probe.txt" 2>&1; grep -c . "$OUT/rows/probe.txt"
$PY "$HERE/rows.py" show "$OUT/rows/new.json" "$OUT/rows/old.json"
export PYTHONPATH=$NEW:$SITE
for tool in memcheck racecheck; do timeout 75 compute-sanitizer --tool $tool $PY "$HERE/rows.py" small > "$OUT/rows/$tool.txt" 2>&1 & done
timeout 100 $PY -m pytest tests/reduce tests/scan tests/rows/test_softmax.py tests/rows/test_softmax_short.py tests/rows/test_norm.py tests/rows/test_norm_backward_long.py tests/elementwise tests/stencil -q -n 12 -m "not slow" -p no:cacheprovider > "$OUT/rows/tests.txt" 2>&1; wait
grep -E "^(FAILED|ERROR)|passed|failed" "$OUT/rows/tests.txt" | cut -c1-120 | tail -6
for tool in memcheck racecheck; do echo "$tool: $(tail -1 "$OUT/rows/$tool.txt" | cut -c1-100)"; done
