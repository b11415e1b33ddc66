# conv: about 90 s. Depthwise tiles in shared memory, a first layer's dx, 1x1 choices (with nvidia-cudnn-frontend on PYTHONPATH): correctness, times against main's kernels and torch's, rows, sanitizer.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); out=${OUT:-/tmp}/conv; mkdir -p "$out"
echo "== tests"; timeout 60 python3 -m pytest -q -n 8 -p no:cacheprovider -m "gpu and not slow" tests/conv/test_depthwise.py 2>&1 | grep -E "^FAILED|^ERROR|passed|failed" | cut -c1-150 | head -5
echo "== kernels"; timeout 60 python3 "$here/conv.py" 2>&1 | grep -v Warn | tee "$out/times.txt" | tail -14
echo "== rows"
for p in step infer; do for c in '*_g*' 'N64_C3_*' 'N64_C*_O128_k1_s1/relu'; do timeout 60 python3 -m fusedops bench conv --pass $p --peers eager --dtype bf16 --case "$c" --out "$out/$p/" 2>&1 | grep " ours " | sed "s/.*conv N/N/; s/error.*//"; done; done
echo "== sanitizer"; for tool in memcheck racecheck; do timeout 60 compute-sanitizer --tool $tool --error-exitcode 1 python3 "$here/conv.py" small 2>&1 | tail -2; done
