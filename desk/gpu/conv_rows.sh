# conv_rows: about 130 s on one GPU (infer, then step; LANE=infer or LANE=step runs one of them). Rows in $OUT/conv/{infer,step}/; nvidia_cudnn_frontend*.whl beside it.
here=$(dirname "$(readlink -f "$0")"); [ -e "$here/conv_forms.py" ] || here=.carry/next; out=${OUT:-/tmp}/conv; mkdir -p "$out"
fe=/tmp/cudnn_fe_rows; mkdir -p $fe; for w in "$here"/nvidia_cudnn_frontend*.whl .whl/nvidia_cudnn_frontend*.whl; do [ -e "$w" ] && (cd $fe && python3 -m zipfile -e "$w" .) && break; done; export PYTHONPATH=$fe:$PYTHONPATH
[ "${LANE:-infer}" = infer ] && timeout 120 python3 -m fusedops bench conv --pass infer --peers eager,cudnn --dtype bf16 --case 'N*' --out "$out/infer/" > "$out/infer.txt" 2>&1
[ "${LANE:-step}" = step ] && timeout 120 python3 -m fusedops bench conv --pass step --peers eager --dtype bf16 --case 'N*' --out "$out/step/" > "$out/step.txt" 2>&1
python3 - "$out" <<'P'
import csv, glob, math, sys
for p in ("infer", "step"):
    rows = [r for f in glob.glob(f"{sys.argv[1]}/{p}/*.csv") for r in csv.DictReader(open(f)) if r.get("speedup")]
    for peer in ("eager", "cudnn"):
        v = sorted((float(r["speedup"]), r["case"]) for r in rows if r["peer"] == peer)
        if v: print(p, peer, len(v), f"{math.exp(sum(math.log(a) for a, _ in v) / len(v)):.3f}", "; ".join(f"{c} {a:.3f}" for a, c in v[:5]))
P
