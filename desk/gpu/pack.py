"""Random products of odd sizes (a fresh seed each round) and fixed ones: ours, main's build ($OLD), torch; every unaligned tile."""
import csv, json, math, os, random, subprocess, sys, time
import torch, torch.nn.functional as F, fusedops
from fusedops import _C
torch.backends.cuda.matmul.allow_tf32 = False
DT = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
FIXED = [(1, 11101, 7928, "bf16", 1, 0), (8, 8325, 9762, "bf16", 0, 0), (64, 7219, 14420, "fp16", 0, 0), (24, 935, 9607, "bf16", 0, 0), (148153, 6, 803, "bf16", 0, 0), (15226, 98, 6444, "bf16", 0, 0),
         (82951, 631, 69, "bf16", 0, 0), (260289, 199, 46, "bf16", 0, 0), (14503, 223, 115, "bf16", 0, 0), (44338, 64, 2415, "fp32", 0, 0), (44338, 64, 2416, "fp32", 0, 0), (33859, 1859, 64, "fp32", 1, 0), (9216, 47, 11549, "fp32", 1, 1), (3776, 1191, 3369, "fp32", 0, 0), (8192, 256, 256, "fp32", 0, 0), (64, 2048, 2048, "fp32", 0, 0)]
def draw(seed, count):
    r = random.Random(seed); log = lambda a, b: int(math.exp(r.uniform(math.log(a), math.log(b))))
    cases = []
    while len(cases) < count:
        form = r.random()
        m, n, k = (log(1, 128), log(64, 32768), log(64, 32768)) if form < .25 else (log(1e5, 1e6), log(1, 512), log(1, 512)) if form < .4 else (log(129, 2e5), log(16, 8192), log(16, 8192))
        if r.random() < .7: n |= 1
        if r.random() < .7: k |= 1
        dt = "fp32" if r.random() < .35 else r.choice(("bf16", "bf16", "fp16"))
        if max(m * k, n * k, m * n) > 6e7 or m * n * k > (3e10 if dt == "fp32" else 2e11): continue
        if dt != "fp32" and n % 8 == 0 and k % 8 == 0: continue
        cases.append((m, n, k, dt, int(r.random() < .15), int(r.random() < .15)))
    return cases
cases = FIXED + draw(int(os.environ.get("SEED", int(time.time()) % 100000)), int(os.environ.get("COUNT", 60)))
flush = torch.empty(128 << 20, dtype=torch.int8, device="cuda")
def timed(fs, rounds=5):
    t = [[] for _ in fs]
    for f in fs: f(); f()
    for _ in range(rounds):
        for i, f in enumerate(fs):
            flush.zero_(); a, b = torch.cuda.Event(True), torch.cuda.Event(True)
            torch.cuda._sleep(150000); a.record(); f(); b.record(); torch.cuda.synchronize(); t[i].append(a.elapsed_time(b) * 1e3)
    return [sorted(x)[rounds // 2] for x in t]
def tensors(m, n, k, dt, tw, tx):
    d = DT[dt]; g = torch.Generator("cuda").manual_seed(m + n + k); rnd = lambda *s: torch.randn(*s, device="cuda", generator=g).to(d)
    return (rnd(k, m).t() if tx else rnd(m, k)), (rnd(k, n).t() if tw else rnd(n, k)), rnd(n)
if len(sys.argv) > 1:  # main's build: our times alone
    times = []
    for case in json.loads(sys.stdin.read()):
        x, w, b = tensors(*case)
        with torch.no_grad(): times += timed([lambda: fusedops.linear(x, w, b, "relu")])
    print(json.dumps(times)); sys.exit()
old = [None] * len(cases)
if os.environ.get("OLD"):
    done = subprocess.run([sys.executable, __file__, "old"], input=json.dumps(cases), capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.environ["OLD"] + ":" + os.environ.get("SITE", "")})
    try: old = json.loads(done.stdout.splitlines()[-1])
    except Exception: print("main's build failed:", done.stderr[-300:])
H = dict(capability=90, sm_count=132); rows = []
for at, case in enumerate(cases):
    m, n, k, dt, tw, tx = case; x, w, b = tensors(*case)
    o = dict(a=(*x.stride(), x.data_ptr() % 16), b=(w.stride(1), w.stride(0), w.data_ptr() % 16), dtype=NAMES[dt], epilogue="fused", activation=1, allow_tf32=False, **H)
    thin, un = _C.thin_gemm(m, n, k, **o), _C.unaligned_gemm(m, n, k, **o)
    p = _C.prepare_gemm(m, n, k, **o)
    what = un["name"] + f'/{un["splits"]}' if un["takes"] else thin["name"] if thin["takes"] else "exact" if (un["rejected"] or "").startswith("WGMMA") else "packed" if p["pack_a"] or p["pack_b"] else "in place"
    model = un["expected_us"] if un["takes"] else thin["expected_us"] if thin["takes"] else un.get("other_us", 0)
    with torch.no_grad():
        ours, theirs = lambda: fusedops.linear(x, w, b, "relu"), lambda: torch.relu(F.linear(x, w, b))
        t_ours, t_torch = timed([ours, theirs]); y, z = ours(), theirs()
        some = torch.cat([torch.arange(min(m, 48)), torch.arange(max(m - 48, 0), m)]).cuda()
        exact = torch.relu(x[some].double() @ w.double().t() + b.double())
        err, ref = ((v[some].double() - exact).norm().item() for v in (y, z))
        tiles = {}
        for tile in range(3 if dt == "fp32" else 8):
            for s in {1, un.get("splits", 1), 2 * un.get("splits", 1)} if at % 2 == 0 or at < 16 else {un.get("splits", 1)}:
                if s > 1 and k / s < 256: continue
                f = lambda tile=tile, s=s: torch.ops.fusedops_tuning.gemm_unaligned(x, w.t(), b, 1, tile, s, 0)
                try: tiles[f"{tile}/{s}"] = round(timed([f], 3)[0], 1)
                except RuntimeError as e: tiles[f"{tile}/{s}"] = str(e)[:80]
    bad = "" if err <= 1.3 * ref + 3e-7 * exact.norm().item() else f" WRONG {err:.2e} torch's {ref:.2e}"
    rows.append(dict(m=m, n=n, k=k, dt=dt, tw=tw, tx=tx, what=what, model=round(model, 1), other=round(un.get("other_us", 0), 1), un_model=round(un.get("expected_us", 0), 1), un=un.get("name", ""), splits=un.get("splits", 0), ours=round(t_ours, 1), old=old[at] and round(old[at], 1), torch=round(t_torch, 1), bad=bad, tiles=json.dumps(tiles)))
    del x, w, y, z
out = os.environ.get("OUT", "/tmp")
with open(f"{out}/pack_random.csv", "w") as file:
    writer = csv.DictWriter(file, rows[0].keys()); writer.writeheader(); writer.writerows(rows)
def line(r):
    nums = [v for v in json.loads(r["tiles"]).items() if isinstance(v[1], float)]; best = min(nums, key=lambda v: v[1], default=("-", 0))
    return f'{r["torch"] / r["ours"]:.2f} {r["m"]}x{r["n"]}x{r["k"]} {r["dt"]} {"T" * r["tx"]}{"t" * r["tw"]} {r["what"]}: {r["ours"]} us (model {r["model"]}), main {r["old"]}, torch {r["torch"]}, best tile {best[0]} {best[1]}{r["bad"]}'
def spread(name, part):
    s = sorted(r["torch"] / r["ours"] for r in part); g = math.exp(sum(map(math.log, s)) / max(len(s), 1))
    o = [r["old"] / r["ours"] for r in part if r["old"]]
    print(f'{name}: {len(s)}, over torch geomean {g:.3f} p5 {s[len(s) // 20]:.2f} worst {s[0]:.2f}; over main geomean {math.exp(sum(map(math.log, o)) / max(len(o), 1)):.3f} worst {min(o, default=0):.2f}')
for r in rows[:16]: print(line(r))
rest = rows[16:]
spread("random 16-bit", [r for r in rest if r["dt"] != "fp32"]); spread("random fp32", [r for r in rest if r["dt"] == "fp32"])
print("worst over torch:"); [print(line(r)) for r in sorted(rest, key=lambda r: r["torch"] / r["ours"])[:10]]
if old[0]: print("worst over main:"); [print(line(r)) for r in sorted(rest, key=lambda r: r["old"] / r["ours"])[:6]]
wrong = [r for r in rows if r["bad"]]; print(f"{len(wrong)} wrong"); [print(line(r)) for r in wrong[:4]]

# Few rows, few columns, long K: the best skinny kernel by the model, the best of the others, torch.
FAM = _C.enums()["family"]; W = torch.ops.fusedops_tuning.gemm_with_config.default; lines = []
for m, n, k in [(8, 88, 31424), (64, 104, 14176), (28, 192, 10944), (64, 512, 5176), (128, 256, 8192), (1, 128, 32768), (16, 1024, 16384), (64, 1024, 8192), (8, 128, 4096), (56, 72, 6000), (120, 640, 9216), (32, 256, 20480)]:
    x, w, b = tensors(m, n, k, "bf16", 0, 0)
    o = dict(a=(k, 1, 0), b=(1, k, 0), dtype="bfloat16", epilogue="fused", activation=1, allow_tf32=False, **H)
    c = [q for q in _C.plan_gemm(_C.prepare_gemm(m, n, k, **o)["problem"], **H)["candidates"] if q["rejected"] is None]
    s = min((q for q in c if q["family"] == "skinny"), key=lambda q: q["expected_us"]); others = sorted((q for q in c if q["family"] not in ("skinny", "sm80")), key=lambda q: q["expected_us"])[:3]
    f = [lambda q=q: W(x, w.t(), b, 1, FAM.index(q["family"]), q["index"], q["splits"], q["swizzle"], 0) for q in (s, *others)]
    with torch.no_grad(): t = timed([*f, lambda: torch.relu(F.linear(x, w, b)), lambda: torch.addmm(b, x, w.t())], 9)
    lines.append(f'{m}x{n}x{k} skinny {t[0]:.1f} (model {s["expected_us"]:.1f})' + "".join(f', {q["name"][:18]}/{q["splits"]} {v:.1f} ({q["expected_us"]:.1f})' for q, v in zip(others, t[1:])) + f", torch {t[-2]:.1f}, product alone {t[-1]:.1f}")
print("\n".join(lines)); open(f"{out}/pack_skinny.txt", "w").write("\n".join(lines))
