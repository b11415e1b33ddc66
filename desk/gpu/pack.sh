# pack: about 90 s (tests 25, times 30, sanitizers 35). Random odd products: ours, main's, torch; every unaligned tile goes to $OUT/pack_random.csv. SEED=n draws others, COUNT=n more.
out=${OUT:-/tmp}; here=$(dirname "$(realpath "$0")")
timeout 100 python3 -m pytest -q -n 8 -p no:cacheprovider -m "not slow" tests/gemm/test_unaligned.py tests/gemm/test_single_words.py tests/gemm/test_large_fp32.py > "$out/pack_tests.txt" 2>&1; grep -E "^FAILED|^ERROR|^E  .*Error|passed|failed" "$out/pack_tests.txt" | cut -c1-170 | tail -12
timeout 100 python3 "$here/pack.py" 2>&1 | tee "$out/pack_times.txt" | grep -v Warn | cut -c1-150 | tail -56
for tool in memcheck racecheck; do
  (timeout 60 compute-sanitizer --tool $tool --error-exitcode 97 python3 scripts/sanitize unaligned $([ $tool = racecheck ] && echo --no-clusters) > "$out/pack_$tool.txt" 2>&1; echo "$tool rc $? $(grep -E 'SUMMARY|calls,' "$out/pack_$tool.txt" | tail -2 | tr '\n' ' ')") &
done; wait
