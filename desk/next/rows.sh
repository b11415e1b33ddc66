# rows.sh: about 100 s (45 of times, 55 of tests and sanitizers side by side). Issue 30: known losers and random shapes against torch and main ($OLD: installed copy of main, $NEW: of main with rows.patch; SITE: pytest, xdist).
OUT=${OUT:-/tmp/out}; mkdir -p "$OUT/rows"; PY=${PY:-python3}; HERE=$(cd "$(dirname "$0")" && pwd); SITE=${SITE:-/tmp/site}
PYTHONPATH=$NEW:$SITE timeout 60 $PY "$HERE/rows.py" time "$OUT/rows/new.json" torch 2>&1 | grep -E "^(WRONG|FAILED)|Error" | cut -c1-110 | tail -6
PYTHONPATH=$OLD:$SITE timeout 40 $PY "$HERE/rows.py" time "$OUT/rows/old.json" > "$OUT/rows/old.txt" 2>&1
$PY "$HERE/rows.py" show "$OUT/rows/new.json" "$OUT/rows/old.json"
export PYTHONPATH=$NEW:$SITE
for tool in memcheck racecheck; do timeout 55 compute-sanitizer --tool $tool $PY "$HERE/rows.py" small > "$OUT/rows/$tool.txt" 2>&1 & done
timeout 55 $PY -m pytest tests/reduce tests/scan tests/rows/test_softmax.py tests/rows/test_norm.py tests/elementwise -q -n 12 -m "not slow" -p no:cacheprovider > "$OUT/rows/tests.txt" 2>&1; wait
grep -E "^(FAILED|ERROR)|passed|failed" "$OUT/rows/tests.txt" | cut -c1-120 | tail -4
for tool in memcheck racecheck; do echo "$tool: $(tail -1 "$OUT/rows/$tool.txt" | cut -c1-100)"; done
