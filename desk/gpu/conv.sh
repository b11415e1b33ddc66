# conv: about 160 s. 3x3 kernel without copies of the image (new), 1x1 with a residual, batch norm in clusters by a probe (needs nvidia-cudnn-frontend): kernels, tests, rows, sanitizers.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); out=${OUT:-/tmp}/conv; mkdir -p "$out"; N="nvcc -gencode arch=compute_90a,code=sm_90a -O3 -std=c++20 --expt-relaxed-constexpr -I. -w"
echo "== 3x3"; timeout 60 python3 "$here/conv.py" image 2>&1 | grep -v Warn | tail -6
echo "== batch norm: passes, clusters"
for u in 2 1; do rm -rf /tmp/bnp$u; mkdir -p /tmp/bnp$u; cp -r csrc /tmp/bnp$u/; sed -i 's/kTakesClusters = false/kTakesClusters = true/' /tmp/bnp$u/csrc/cuda/batch_norm/batch_norm_cluster_launch.cuh; sed -i "s/kClusterUnroll = [0-9]/kClusterUnroll = $u/" /tmp/bnp$u/csrc/cuda/batch_norm/batch_norm_cluster.cuh; (cd /tmp/bnp$u && $N -o /tmp/conv_bn$u "$here/conv_bn.cu") & done; wait
for u in 2 1; do echo "rows of a group: $u"; timeout 30 /tmp/conv_bn$u; done
echo "== tests"; timeout 100 python3 -m pytest -q -n 8 -p no:cacheprovider -m "not slow" -k "cuda or gpu or one_kernel or evaluation or graph or 3x3" tests/conv 2>&1 | tee "$out/tests.txt" | grep -E "^FAILED|^ERROR|^E  |passed|failed" | cut -c1-170 | tail -8
echo "== rows"
timeout 150 python3 -m fusedops bench conv --pass infer --peers eager,cudnn --dtype bf16 --case 'N*' --out "$out/infer/" > "$out/infer.txt" 2>&1
timeout 150 python3 -m fusedops bench conv --pass step --peers eager --dtype bf16 --case 'N*' --out "$out/step/" > "$out/step.txt" 2>&1
python3 "$here/conv_rows.py" "$out"
S=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
echo "== sanitizer $S"; timeout 170 $S --tool memcheck python3 "$here/conv.py" small_pw > "$out/mem_pw.txt" 2>&1 & timeout 170 $S --tool racecheck python3 "$here/conv.py" small_pw > "$out/race.txt" 2>&1; wait; for f in mem_pw race; do echo "$f: $(tail -2 "$out/$f.txt" | tr '\n' ' ')"; done
