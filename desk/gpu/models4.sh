# Expected seconds: <= 400 (LIMIT). Four GPUs (GPUS="0 1 2 3"), three processes on each (PROCS): they prepare side by side and measure alone (--turns). No module of its own; wants prof_models.py beside it.
# $MODELS: all 27 of the suite, the slowest to compile first; a free process takes the next one; @NAME,CONTENDERS... prints its kernels. Rows for `fusedops bench --merge`: $OUT/models4/rows/. Last: a table and the bars.
D=$OUT/models4; mkdir -p $D/rows; rm -f $D/rows/*; S0=$SECONDS; LIMIT=${LIMIT:-400}; CAP=${CAP:-260}; N=$(cd "$(dirname "$0")"; pwd)
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_COMPILE_THREADS=3 OMP_NUM_THREADS=2 PYTHONWARNINGS=ignore
MODELS=${MODELS:-tv_swin_base swin_base t5 mixtral whisper convnext_base clip eva02_large gemma2 phi3 qwen3 mistral vit_large mixer_large pointnet2_bn gpt2_medium llama bert roberta opt titan_llama nanogpt_autocast tv_vit_base distilbert pointnet2 dlrm gin}
Q=${QUEUE:-/tmp/models4.queue}; echo $MODELS | tr ' ' '\n' > $Q; rm -f $D/done.txt $D/late.txt
next() { ( flock 9; head -n 1 $Q; sed -i 1d $Q ) 9> $Q.lock; }
worker() { # GPU
  export CUDA_VISIBLE_DEVICES=$1 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor$1
  while m=$(next); [ -n "$m" ]; do
    left=$((LIMIT-SECONDS+S0)); [ $left -lt 45 ] && { echo "$m: no time" >> $D/late.txt; continue; }
    [ $left -gt $CAP ] && left=$CAP
    b=$SECONDS; case $m in @*) set -- $1 ${m#@}; n=${2%%,*}; TOP=26 nice -n -10 timeout -k 2 $left python3 $N/prof_models.py /tmp/turns$1 ${2//,/ } > $D/prof_$n.txt 2>&1; echo "$m rc $? gpu $1 $((SECONDS-b)) s" >> $D/done.txt; continue;; esac
    nice -n -10 timeout -k 2 $left python3 -m fusedops bench models --pass step --turns /tmp/turns$1 --case "$m/*" --out $D/$m/ > $D/$m.txt 2>&1
    echo "$m rc $? gpu $1 $((SECONDS-b)) s" >> $D/done.txt
  done; }
for w in $(seq ${PROCS:-3}); do for g in ${GPUS:-0 1 2 3}; do worker $g & sleep 1; done; done; wait
for f in models models_shares; do cat $D/*/$f.csv | awk 'NR == 1 || !/^(suite|case),/' > $D/$f.new; mv $D/$f.new $D/rows/$f.csv; done
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
for f in glob.glob(sys.argv[1] + "/rows/models_shares.csv"):
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
python3 /tmp/busy.py $D; python3 /tmp/models4.py $D/rows/models.csv; python3 -m fusedops bench --summary $D/rows/models.csv 2>/dev/null | tail -12
grep -aE "FAILED|Error|skipped: .*not|out of memory" $D/*.txt | cut -c1-150 | sort | uniq | head -12
cat $D/late.txt 2>/dev/null | tr '\n' ';'; awk '{print $1, $5, $3}' $D/done.txt | tr '\n' ';'; echo "models4 ends at $((SECONDS-S0))"
