# conv5: about 250 s. Depthwise kernels: correctness, times against torch's on one card, rows, sanitizer. Needs conv/nvidia_cudnn*.whl beside it.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); out=${OUT:-/tmp}/conv5; mkdir -p "$out"
fe=/tmp/cudnn_fe5_$$; mkdir -p $fe; for w in "$here"/conv/nvidia_cudnn*.whl "$here"/nvidia_cudnn*.whl; do [ -e "$w" ] && (cd $fe && python3 -m zipfile -e "$w" .) && break; done
P0=$PYTHONPATH; export PYTHONPATH=$PYTHONPATH:$fe
echo "== tests"
timeout 90 python3 -m pytest -q -n 8 -p no:cacheprovider -m "gpu and not slow" tests/conv > "$out/tests.txt" 2>&1; grep -E "^FAILED|^ERROR|passed|failed" "$out/tests.txt" | cut -c1-150 | head -6
echo "== us: torch's convolution -> ours: forward, dgrad, wgrad; copy of x and y"
timeout 60 python3 "$here/conv5.py" 2>&1 | tee "$out/times.txt" | tail -16
echo "== rows: step, infer"
timeout 100 python3 -m fusedops bench conv --pass step --peers eager --dtype bf16 --case 'N*' --out "$out/step/" > "$out/step.txt" 2>&1
timeout 100 python3 -m fusedops bench conv --pass infer --peers eager,cudnn --dtype bf16 --case 'N*' --out "$out/infer/" > "$out/infer.txt" 2>&1
grep -q FAILED "$out/infer.txt" && timeout 60 python3 -m fusedops bench conv --pass infer --peers eager,cudnn --dtype bf16 --case 'N*' --missing --out "$out/infer/" > "$out/infer2.txt" 2>&1
python3 - "$out" <<'P'
import csv, glob, math, sys
for p in ("step", "infer"):
    rows = [r for f in glob.glob(f"{sys.argv[1]}/{p}/*.csv") for r in csv.DictReader(open(f)) if r.get("speedup")]
    for peer in ("eager", "cudnn"):
        v = [float(r["speedup"]) for r in rows if r["peer"] == peer]
        if v: print(p, peer, len(v), "layers, geomean %.3f least %.3f" % (math.exp(sum(map(math.log, v)) / len(v)), min(v)))
    for r in rows:
        if "_g" in r["case"] or "C3_" in r["case"] or "O24" in r["case"] or (p == "infer" and float(r["speedup"]) < .95): print(" ", p, r["case"], r["ours_us"], r["peer"], r["peer_us"], r["speedup"])
P
grep -E "Error|error:" $out/step.txt $out/infer*.txt | cut -c1-140 | head -4
echo "== forms of the norm"
timeout 60 python3 "$here/conv5_forms.py" 2>&1 | grep -v Warn | tee "$out/forms.txt" | cut -c1-150 | tail -15
echo "== compile as a peer"
q="--shapes 64x64x56x64x3x1,64x256x56x64x1x1,64x256x14x256x3x1,8x256x64x256x3x1,64x3x224x64x7x2"
for p in infer step; do timeout 80 python3 -m fusedops bench conv $q --activation relu --pass $p --peers eager,compile --dtype bf16 --out "$out/compile_$p/" 2>&1 | grep ours | sed "s/.*conv //; s/error.*//" | cut -c1-120; done
echo "== kernels of a step"
timeout 40 python3 "$here/conv5_prof.py" 2>&1 | grep -v Warn | tee "$out/prof.txt" | cut -c1-420 | tail -18
echo "== sanitizer"
for tool in memcheck racecheck; do timeout 60 compute-sanitizer --tool $tool --error-exitcode 1 python3 "$here/conv5.py" small 2>&1 | tail -2; done
export PYTHONPATH=$P0
