. .carry/lanes.sh
# H200: the other half of the suite beside nothing, then sanitizers of what has the sm90 epilogue.
wait $IRPID
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
T 330 "tests/rows tests/reduce tests/scan tests/points tests/stencil tests/elementwise tests/bench tests/integration tests/tuning tests/template tests/compat tests/distributed tests/project" 15 c
timeout 230 python3 scripts/sanitize/tools.py --family fp8,gated,epilogue --out $O/sanitizer.txt --budget 225 --limit 200 > $O/san.txt 2>&1; tail -14 $O/san.txt | cut -c1-200; echo "san $SECONDS"
pack
