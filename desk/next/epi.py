import os, sys, time, itertools
from concurrent.futures import ThreadPoolExecutor
os.environ.setdefault("FUSEDOPS_CACHE_DIR", "/tmp/epicache")
import torch, torch.nn.functional as F
import fusedops
import fusedops._epilogue.run as R, fusedops._epilogue.launch as L, fusedops._epilogue.visitor as V
from fusedops._epilogue.ops import from_text
from fusedops._epilogue.trace import trace
from fusedops._epilogue.derive import derive
torch.manual_seed(0)
START, LIMIT = time.time(), float(os.environ.get("LIMIT", "80"))
C, H, W_, N_ = "column", "full", "row", "number"
EX = {  # name: (function, kinds, built-in activation)
 "gelu": (lambda acc, bias: F.gelu(acc + bias), dict(bias=(C, 2)), "gelu"),
 "gelu_tanh": (lambda acc, bias: F.gelu(acc + bias, approximate="tanh"), dict(bias=(C, 2)), "gelu_tanh"),
 "silu": (lambda acc, bias: F.silu(acc + bias), dict(bias=(C, 2)), "silu"),
 "tanh_scaled": (lambda acc, scale, bias: torch.tanh(acc * scale + bias), dict(scale=(C, 2), bias=(C, 2)), "tanh"),
 "relu_res": (lambda acc, scale, bias, res: torch.relu(acc * scale + bias) + res, dict(scale=(C, 2), bias=(C, 2), res=(H, 2)), "relu"),
 "gate_row": (lambda acc, bias, r, g: F.silu(acc * r + bias) * g, dict(bias=(C, 4), r=(W_, 4), g=(H, 2)), "silu"),
 "gelu_res": (lambda acc, bias, res: F.gelu(acc + bias) + res, dict(bias=(C, 2), res=(H, 2)), "gelu"),
 "many": (lambda acc, a, b, c, d: F.silu(acc + a) * b + c * torch.cos(d), dict.fromkeys("abcd", (H, 2)), "silu"),
}
BY = {c.name: c for c in L.CONFIGS}
CHOOSE, LOOPS, SMS = R.choose, V.loops, R.multiprocessors
def program(name):
    f, kinds, act = EX[name]
    b, o, names = trace(f)
    return f, R.Program(o, derive(b, o, ("acc", *names)), tuple((n, *kinds[n]) for n in names)), names, kinds, act
def make(m, n, k, dt, kinds, names):
    x, w = torch.randn(m, k, device="cuda").to(dt), (torch.randn(n, k, device="cuda") / k ** .5).to(dt)
    shape = {C: (n,), W_: (m, 1), H: (m, n)}
    return x, w, [torch.randn(shape[kinds[q][0]], device="cuda").to(dt if kinds[q][1] == 2 else torch.float32) for q in names]
def rel(a, b): return float((a.double() - b).norm() / b.norm().clamp_min(1e-30))
def primed(name, config=None, loops=None, keep=False, args=None):
    """A program that ran once by a configuration and a way over blocks."""
    p = program(name)[1]
    if config: R.choose = lambda *a: BY[config]
    if loops is not None: V.loops = R.loops = lambda o: loops
    y = p.run(*args, keep) if args else (p.forward_source(torch.bfloat16),)
    R.choose, V.loops, R.loops = CHOOSE, LOOPS, LOOPS
    return p, y
def fits(name, config): return BY[config].reads or H not in [q[0] for q in EX[name][1].values()]
bad = good = 0
def note(ok, *words):
    global bad, good
    good, bad = good + ok, bad + (not ok)
    if not ok: print("BAD", *words, flush=True)
def check(name, m, n, k, dt, config, loops, sms):
    f, _, names, kinds, _ = program(name)
    x, w, v = make(m, n, k, dt, kinds, names)
    R.multiprocessors = lambda d: sms or SMS(d)
    p, (y, acc) = primed(name, config, loops, True, (x, w, v))
    y2 = primed(name, config, loops, False, (x, w, v))[1][0]
    R.multiprocessors = SMS
    a64 = x.double() @ w.double().t()
    y64 = f(a64, *[t.double() for t in v])
    l = [acc.double().requires_grad_()] + [t.double().requires_grad_() for t in v]
    e = f(*l); dy = torch.randn_like(e).to(dt)
    want = torch.autograd.grad(e, l, dy.double())
    got = p.run_backward(dy, acc, v, ["acc", *names])
    errs = [rel(y, y64), rel(acc, a64)] + [rel(g.reshape(t.shape), t) for g, t in zip(got, want)]
    unit = 2.0 ** (-9 if dt is torch.bfloat16 else -12) * (2 if m * n < 100 else 1)
    ok = torch.equal(y, y2) and errs[0] < 1.3 * unit and errs[1] < unit and max(errs[2:]) < 1.6 * unit
    note(ok, name, m, n, k, dt, config, loops, sms, [round(q / unit, 2) for q in errs], torch.equal(y, y2))
def graph_time(fns, sets, rounds=5):
    gs = []
    for fn in fns:
        for s in sets: fn(*s)
        torch.cuda.synchronize(); g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            for _ in range(3):
                for s in sets: fn(*s)
        gs.append(g)
    t = [[] for _ in fns]
    for r, (i, g) in itertools.product(range(rounds + 1), enumerate(gs)):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); g.replay(); b.record(); b.synchronize()
        if r: t[i].append(a.elapsed_time(b) * 1e3 / 3 / len(sets))
    return [sorted(q)[len(q) // 2] for q in t]
def link_all():
    jobs = {(primed(n, None, q)[1][0], "bf16", BY[c]) for n in EX for c in BY for q in (False, True) if fits(n, c)}
    t0 = time.time()
    with ThreadPoolExecutor(14) as pool: list(pool.map(lambda j: R.forward_cubin(*j), jobs))
    print(f"{len(jobs)} linked in {time.time() - t0:.1f} s", flush=True)
def main():
    link_all()
    for n, c in itertools.product(EX, BY):
        if not fits(n, c): continue
        for q in (False, True): check(n, 1000, 520, 200, torch.bfloat16, c, q, 2)
    for n in EX: check(n, 777, 1032, 328, torch.float16, None, None, 0); check(n, 300, 264, 72, torch.bfloat16, None, None, 0)
    for n in ("relu_res", "many"): check(n, 8192, 4096, 1024, torch.bfloat16, None, None, 0); check(n, 1, 8, 8, torch.bfloat16, None, None, 0)
    print(f"right: {good} ok, {bad} BAD, {time.time() - START:.0f} s", flush=True)
    print("us; config:unrolled/looped (k: keeps the product); chosen fwd and step over built-in's", flush=True)
    for (m, n, k), name in itertools.product([(8192, 4096, 1024), (8192, 4096, 4096), (16384, 2048, 2048)], EX):
        if time.time() - START > LIMIT: return print("out of time")
        f, p, names, kinds, act = program(name)
        sets = [make(m, n, k, torch.bfloat16, kinds, names) for _ in range(3)]
        bias = torch.randn(n, device="cuda").bfloat16()
        raw = [(a, b, c) for a, b, c in sets]
        key = [c for c in ("1", "1_reads", "6", "6_reads", "10_reads") if fits(name, c)]
        ways = [(c, q, False) for c in key for q in (False, True)]
        ways += [(c, None, True) for c in ("1", "1_reads", "6", "6_reads", "10_reads") if fits(name, c) and (c[0] != "6" or name != "many")]
        fns = [lambda x, w, v: fusedops.linear(x, w, bias, activation=act), lambda x, w, v: p.run(x, w, v, False)]
        for c, q, keep in ways:
            made = primed(name, c, q, keep, sets[0])[0]
            fns.append(lambda x, w, v, made=made, keep=keep: made.run(x, w, v, keep))
        with torch.no_grad(): t = graph_time(fns, raw)
        shown = {}
        for (c, q, keep), s in zip(ways, t[2:]): shown.setdefault(c + "k" * keep, []).append(f"{s:.0f}")
        made = fusedops.epilogue(f)
        def leaves(x, w, v): return [t.detach().requires_grad_() for t in (x, w, *v)]
        dy = torch.randn(m, n, device="cuda").bfloat16()
        def step(x, w, v):
            l = leaves(x, w, v)
            torch.autograd.grad(fusedops.linear(l[0], l[1], epilogue=made(**dict(zip(names, l[2:])))), l, dy)
        def built(x, w, v):
            l = leaves(x, w, [bias]); torch.autograd.grad(fusedops.linear(*l, activation=act), l, dy)
        s = graph_time([step, built], raw, 3)
        print(f"{m}x{n}x{k}/{name}", " ".join(f"{c.replace('_reads', 'r')}:{'/'.join(v)}" for c, v in shown.items()),
              f"| {t[1]:.0f} {t[0]:.0f} {t[0] / t[1]:.3f} | {s[0]:.0f} {s[1]:.0f} {s[1] / s[0]:.3f}", flush=True)
main()
