. .carry/lanes.sh
timeout 60 python3 .carry/next/wide_ab.py wide > $O/wide_a.txt 2>&1; echo "a rc $? $SECONDS"
timeout 150 nice -n -10 python3 -m fusedops bench wild --family linear,mlp,gated,skinny --count 90 --seed 31127 --out $O/wild0/ > $O/wild.txt 2>&1; echo "wild rc $? $SECONDS"
chmod +x .carry/next/sanslot.sh; cp perf/results/h200/sanitizer.txt $O/sanitizer.txt; sed -i '/ thin /d' $O/sanitizer.txt
( export GPUS="0" SLOTS=4 FUSEDOPS_COMMIT=; timeout 125 python3 scripts/sanitize/tools.py --sanitizer $PWD/.carry/next/sanslot.sh --limit 120 --commit $(cat .carry/commit) --missing --jobs 4 --budget 120 --out $O/sanitizer.txt --family thin; echo "san rc $? $SECONDS" ) > $L/san.txt 2>&1 &
( timeout -s INT -k 15 110 python3 -m pytest -q -n 9 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_thin.py tests/gemm/test_unaligned.py tests/gemm/test_mlp.py tests/integration/test_inductor_saved.py tests/bench/test_bench_models.py > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 ) &
finish ${ALL:-330}
cat $L/san.txt; grep thin $O/sanitizer.txt; grep "us " $O/wide_a.txt | cut -c1-120
python3 -m fusedops bench --summary $O/wild0/wild.csv 2>/dev/null | grep wild | cut -c1-150
pack
