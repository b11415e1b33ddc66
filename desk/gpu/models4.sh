# Expected seconds: <= 400 (LIMIT; shorter limits take fewer models). Three GPUs (GPUS="1 2 3"), two processes on each: one compiles while the other measures alone (--turns). No module of its own.
# $MODELS: names, worst first; a free process takes the next one. Rows: $OUT/models4/NAME/models.csv, all of them in $OUT/models4/models.csv. Last: a table and the bars.
D=$OUT/models4; mkdir -p $D; S0=$SECONDS; LIMIT=${LIMIT:-400}; CAP=${CAP:-240}
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_COMPILE_THREADS=4 OMP_NUM_THREADS=2 PYTHONWARNINGS=ignore
MODELS=${MODELS:-swin_base clip bert roberta tv_vit_base qwen3 vit_large distilbert convnext_base phi3 mixer_large dlrm mistral gemma2 eva02_large whisper gpt2_medium @bert,fuse,eager @titan_llama,inductor,compile_whole}
Q=/tmp/models4.queue; echo $MODELS | tr ' ' '\n' > $Q
cat > /tmp/prof3.py <<'P'
import collections, contextlib, re, sys, time, pathlib, torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from fusedops.bench.suites.base import Selection
from fusedops.bench.suites.models.suite import SUITE
import fusedops, fusedops.bench.suites.models.contenders as C
from fusedops.bench.turns import Turns
turns = Turns(pathlib.Path(sys.argv[1])); m = sys.argv[2]; s = SUITE(); dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
c = next(c for c in s.cases(Selection("step")) if c.name.startswith(m + "/"))
sync = torch.cuda.synchronize if dev.type == "cuda" else lambda: None
with s.context("bf16"):
    calls, o = {}, fusedops.inductor(); C._options = lambda n: o if n == "inductor" else {}
    with turns.beside_others():
        data = s.make_inputs(c, torch.bfloat16, "step", dev)
        for w in sys.argv[3:]:
            calls[w] = C.make(w, s._model(), "step")
            for _ in range(4): calls[w](*data)
            sync()
    print(str(o.report)[:9000])
    with turns.alone():
        for w, f in calls.items():
            for _ in range(3): f(*data)
            sync(); t = time.perf_counter()
            for _ in range(10): f(*data)
            host = time.perf_counter() - t; sync(); wall = time.perf_counter() - t
            with profile(activities=[ProfilerActivity.CUDA]) as p: f(*data); sync()
            us, n, end = collections.Counter(), collections.Counter(), 0.0
            for e in sorted((e for e in p.events() if e.device_type == DeviceType.CUDA), key=lambda e: e.time_range.start):
                us[e.name] += max(e.time_range.end - max(e.time_range.start, end), 0); end = max(end, e.time_range.end); n[e.name] += 1
            print(f"=== {m}/{w}: wall {wall*100:.3f} ms, host {host*100:.3f} ms, busy {sum(us.values()):.0f} us, {sum(n.values())} kernels")
            for k, v in us.most_common(26): print(f"{v:9.1f} {n[k]:4d} " + re.sub(r"at::native::|fusedops::|void |\(anonymous namespace\)::|cutlass::|gemm::|unsigned ", "", k)[:150])
P
next() { ( flock 9; head -n 1 $Q; sed -i 1d $Q ) 9> $Q.lock; }
worker() { # GPU
  export CUDA_VISIBLE_DEVICES=$1 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor$1
  while m=$(next); [ -n "$m" ]; do
    left=$((LIMIT-SECONDS+S0)); [ $left -lt 45 ] && { echo "$m: no time" >> $D/late.txt; continue; }
    [ $left -gt $CAP ] && left=$CAP
    b=$SECONDS; case $m in @*) set -- $1 ${m#@}; n=${2%%,*}; nice -n -10 timeout -k 2 $left python3 /tmp/prof3.py /tmp/turns$1 ${2//,/ } > $D/prof_$n.txt 2>&1; echo "$m rc $? gpu $1 $((SECONDS-b)) s" >> $D/done.txt; continue;; esac
    nice -n -10 timeout -k 2 $left python3 -m fusedops bench models --pass step --turns /tmp/turns$1 --case "$m/*" --out $D/$m/ > $D/$m.txt 2>&1
    echo "$m rc $? gpu $1 $((SECONDS-b)) s" >> $D/done.txt
  done; }
for w in 1 2; do for g in ${GPUS:-1 2 3}; do worker $g & sleep 1; done; done; wait
cat $D/*/models.csv | awk 'NR == 1 || !/^suite,/' > $D/models.csv
cat > /tmp/models4.py <<'P'
import csv, collections, math, sys
T = collections.defaultdict(dict)
for r in csv.DictReader(open(sys.argv[1])):
    m, v = r["case"].split("/")
    T[m][v] = (float(r["ours_us"]), float(r["ours_extra_mb"] or "nan")); T[m][r["peer"]] = (float(r["peer_us"]), float(r["peer_extra_mb"] or "nan"))
G = collections.defaultdict(list)
print("model               eager compile c_whole liger   fuse induct f_comp | best pass fuse  mem")
for m, d in T.items():
    t = lambda n: d[n][0] if n in d else math.inf
    theirs, ours = min(map(t, ("eager", "compile", "compile_whole", "liger"))), min(("fuse", "inductor", "fuse_compile"), key=t)
    c = min(t("compile"), t("compile_whole")); cm = [d[n][1] for n in ("compile", "compile_whole") if n in d]
    cell = [theirs / t(ours), c / min(t("inductor"), t("fuse_compile")), t("eager") / t("fuse"), (min(cm) if cm else math.nan) / d[ours][1]]
    for k, x in zip(("best", "pass", "fuse", "memory"), cell):
        if math.isfinite(x) and x > 0: G[k].append((x, m))
    print(f"{m:17}", *(f"{t(n)/1e3:7.2f}" if n in d else "      -" for n in ("eager", "compile", "compile_whole", "liger", "fuse", "inductor", "fuse_compile")), "|", *(f"{x:.3f}" for x in cell), ours)
for k, bar in (("best", "1.12, worst 1.02"), ("pass", "1.10, worst 1.00"), ("fuse", "1.35"), ("memory", "worst 1.00")):
    x = sorted(G[k]); print(k, f"geomean {math.exp(sum(math.log(a) for a, _ in x)/max(len(x),1)):.3f} of {len(x)}, bar {bar}; lowest", *(f"{m} {a:.3f}" for a, m in x[:5]))
P
cat > /tmp/busy.py <<'P'
import csv, glob, math, sys, collections
B = collections.defaultdict(dict)
for f in glob.glob(sys.argv[1] + "/*/models_shares.csv"):
    for r in csv.DictReader(open(f)): B[r["case"].split("/")[0]][r["contender"].split("/")[-1]] = float(r["busy_us"])
G = collections.defaultdict(list); print("GPU busy (free of the host's load): best pass fuse")
for m, d in B.items():
    t = lambda n: d.get(n, math.inf)
    c = min(t("compile"), t("compile_whole"))
    x = {"best": min(t("eager"), c, t("liger")) / min(t("fuse"), t("inductor"), t("fuse_compile")), "pass": c / min(t("inductor"), t("fuse_compile")), "fuse": t("eager") / t("fuse")}
    for k, v in x.items():
        if math.isfinite(v) and v > 0: G[k].append((v, m))
    print(f"{m:17}", *(f"{v:.3f}" for v in x.values()))
for k, v in G.items(): print(k, f"geomean {math.exp(sum(math.log(a) for a, _ in v)/len(v)):.3f} of {len(v)}; lowest", *(f"{m} {a:.3f}" for a, m in sorted(v)[:4]))
P
python3 /tmp/busy.py $D; python3 /tmp/models4.py $D/models.csv; python3 -m fusedops bench --summary $D/models.csv 2>/dev/null | tail -12
grep -aE "FAILED|Error|skipped: .*not|out of memory" $D/*.txt | cut -c1-150 | sort | uniq | head -12
cat $D/late.txt 2>/dev/null | tr '\n' ';'; awk '{print $1, $5, $3}' $D/done.txt | tr '\n' ';'; echo "models4 ends at $((SECONDS-S0))"
