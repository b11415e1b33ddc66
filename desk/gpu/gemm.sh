# gemm: about 150 s on one GPU (tests of the new kernel 30, wild 30, fit grid 45, sanitizers 40). Prints distribution, ten worst, kernels.
out=${OUT:-/tmp}; mkdir -p "$out/gemm"; seed=${SEED:-$((RANDOM * 7 + 1))}
here=$(dirname "$(readlink -f "$0")"); [ -e "$here/gemm_fit.py" ] || here=.carry/next
echo "seed $seed, $(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)"
timeout 100 python3 -m pytest -q -n 6 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_one_row.py tests/gemm/test_thin.py tests/gemm/test_unaligned.py tests/gemm/test_large_fp32.py tests/gemm/test_skinny.py tests/gemm/test_mlp.py > "$out/gemm/tests.txt" 2>&1; grep -E "FAILED|ERROR| passed| failed" "$out/gemm/tests.txt" | cut -c1-160 | tail -12
timeout 75 python3 -m fusedops bench wild --family linear,mlp,gated,skinny --count ${COUNT:-75} --seed $seed --budget ${BUDGET:-30} --out "$out/gemm/" > "$out/gemm/wild_log.txt" 2>&1
python3 -m fusedops bench --summary "$out"/gemm/wild.csv > "$out/gemm/summary.txt" 2>&1; grep -vE "^ *$|no data|^Bars" "$out/gemm/summary.txt" | cut -c1-150 | head -50
LIMIT=${FIT:-45} SEED=$seed timeout 85 python3 "$here/gemm_fit.py" > "$out/gemm/fit.txt" 2>&1; tail -14 "$out/gemm/fit.txt" | cut -c1-250
for t in memcheck "racecheck"; do f=one_row; [ $t = racecheck ] && f="one_row --no-clusters"; PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 60 compute-sanitizer --tool $t --print-limit 5 python3 scripts/sanitize $f 2>&1 | grep -E "Invalid|Race|hazard|Address|at .*kernel|SUMMARY|one row" | cut -c1-160 | head -8; done
