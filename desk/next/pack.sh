# pack: about 90 s (tests 30, probe's compilation 30, probe 15, times 15). Needs nvcc; SANITIZE=1 adds memcheck and racecheck (60 s).
out=${OUT:-/tmp}; here=$(dirname "$(realpath "$0")")
(nvcc -std=c++20 -O3 -arch=sm_90a -I. --expt-relaxed-constexpr --extended-lambda -diag-suppress=177 "$here/pack_probe.cu" csrc/cutlass/kernels/unaligned/unaligned_bf16.cu csrc/cutlass/kernels/unaligned/unaligned_fp16.cu csrc/cutlass/passes/pack.cu -o "$out/pack_probe" > "$out/pack_nvcc.txt" 2>&1 || tail -3 "$out/pack_nvcc.txt") &
timeout 150 python3 -m pytest -q -x -n 8 -p no:cacheprovider -m "not slow" tests/gemm/test_unaligned.py tests/gemm/test_single_words.py tests/gemm/test_linear.py > "$out/pack_tests.txt" 2>&1; grep -E "^FAILED|^ERROR|passed|failed" "$out/pack_tests.txt" | cut -c1-150 | tail -5
wait
python3 "$here/pack.py" 2>&1 | tee "$out/pack_times.txt" | cut -c1-150 | head -28
"$out/pack_probe" 2>&1 | tee "$out/pack_probe.txt" | cut -c1-150 | head -20
[ -n "$SANITIZE" ] && for tool in memcheck racecheck; do timeout 100 compute-sanitizer --tool $tool --error-exitcode 1 python3 -m pytest -q -n 0 -p no:cacheprovider "tests/gemm/test_unaligned.py::test_every_layout_and_address" 2>&1 | tail -2; done
