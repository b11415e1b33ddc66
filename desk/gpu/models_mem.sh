# Expected seconds: 60. One GPU, three processes. What is alive at the peak of a step of whisper and llama, ours against compile's; kernels of whisper's and titan_llama's step. Details, Inductor's code: $OUT/models_mem/.
D=$OUT/models_mem; mkdir -p $D; export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2 PYTHONWARNINGS=ignore TORCHINDUCTOR_COMPILE_THREADS=4
cat > /tmp/mmem.py <<'P'
import collections, contextlib, fcntl, gc, glob, linecache, os, re, shutil, sys, torch
D, model, names, prof = sys.argv[1], sys.argv[2], sys.argv[3].split(","), "prof" in sys.argv[4:]
import fusedops, fusedops.bench.suites.models.contenders as C
from fusedops.bench.suites.models.suite import MODELS
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
@contextlib.contextmanager
def alone():
    with open("/tmp/mmem.lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX); yield; torch.cuda.synchronize()
def who(frames):
    seen = []
    for f in frames or ():
        if f["filename"].startswith(CACHE): return linecache.getline(f["filename"], f["line"]).strip()[:110]
        if "/torch/" not in f["filename"] and f["filename"].endswith(".py"): seen.append(f"{os.path.basename(f['filename'])}:{f['line']} {f['name']}")
    return " < ".join(seen[:3])[:110] or "C++ (autograd)"
def peak(trace):
    live, total, best, at = {}, 0, 0, {}
    for e in trace:
        if e["action"] == "alloc": live[e["addr"]] = e; total += e["size"]
        elif e["action"] == "free_completed" and e["addr"] in live: total -= live.pop(e["addr"])["size"]
        if total > best: best, at = total, dict(live)
    return best, at
def memory(call, data, tag):
    torch.cuda.synchronize(); gc.collect(); base = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=300000)
    r = call(*data); torch.cuda.synchronize(); top = torch.cuda.max_memory_allocated() - base
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]; torch.cuda.memory._record_memory_history(None); del r
    best, at = peak(trace); by = collections.Counter(); n = collections.Counter()
    for e in at.values(): k = who(e.get("frames")), e["size"]; by[k] += e["size"]; n[k] += 1
    lines = [f"{s/2**20:8.1f} MiB {n[k]:3d} x {k[0]}" for k, s in by.most_common(60)]
    open(f"{D}/{tag}.mem.txt", "w").write(f"peak {top/2**20:.1f} MiB, by the trace {best/2**20:.1f}\n" + "\n".join(lines) + "\n")
    print(f"== {tag}: peak {top/2**20:.0f} MiB, by the trace {best/2**20:.0f}"); print("\n".join(l[:118] for l in lines[:7]))
def kernels(call, data, tag):
    for _ in range(3): call(*data)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(3): call(*data)
        torch.cuda.synchronize()
    us, n, end = collections.Counter(), collections.Counter(), 0.0
    for e in sorted((e for e in p.events() if e.device_type == DeviceType.CUDA), key=lambda e: e.time_range.start):
        us[e.name] += max(e.time_range.end - max(e.time_range.start, end), 0); end = max(end, e.time_range.end); n[e.name] += 1
    short = lambda k: re.sub(r"at::native::|fusedops::|void |\(anonymous namespace\)::|cutlass::|gemm::|unsigned ", "", k)
    open(f"{D}/{tag}.kernels.txt", "w").write("".join(f"{v/3:9.1f} {n[k]//3:4d} {short(k)[:230]}\n" for k, v in us.most_common()))
    triton = sum(v for k, v in us.items() if k.startswith("triton")); print(f"-- {tag}: busy {sum(us.values())/3:.0f} us, {sum(n.values())//3} kernels; Triton's {triton/3:.0f} us")
spec = next(m for m in MODELS if m.name == model); dev = torch.device("cuda"); L = spec.load(False, torch.bfloat16, dev)
o = fusedops.inductor(); C._options = lambda k: o if k == "inductor" else {}; calls = {}
for v in names:
    CACHE = os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"/tmp/mmem_{model}_{v}"; torch._dynamo.reset()
    call = C.make(v, L, "step")
    for _ in range(3): call(*L.data)
    with alone(): memory(call, L.data, f"{model}.{v}")
    if prof:
        with alone(): kernels(call, L.data, f"{model}.{v}")
    for f in glob.glob(CACHE + "/**/*.py", recursive=True):
        if "def call" in open(f).read(): os.makedirs(f"{D}/code", exist_ok=True); shutil.copy(f, f"{D}/code/{model}.{v}.{os.path.basename(f)}")
    del call; gc.collect()
open(f"{D}/{model}.report.txt", "w").write(str(o.report))
P
python3 /tmp/mmem.py $D whisper compile_whole,inductor prof > $D/whisper.txt 2>&1 & python3 /tmp/mmem.py $D llama compile_whole,inductor,fuse > $D/llama.txt 2>&1 & python3 /tmp/mmem.py $D titan_llama compile_whole,inductor prof > $D/titan.txt 2>&1 & wait
for m in whisper llama titan; do grep -v -i warn $D/$m.txt | tail -n 26 | cut -c1-118; done
