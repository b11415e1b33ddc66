import os, sys, time, itertools, random
from concurrent.futures import ThreadPoolExecutor
os.environ.setdefault("FUSEDOPS_CACHE_DIR", "/tmp/epicache")
import torch, torch.nn.functional as F
import fusedops
import fusedops._epilogue.backward as B, fusedops._epilogue.run as R, fusedops._epilogue.launch as L, fusedops._epilogue.visitor as V
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
 "softcap": (lambda acc: 30.0 * torch.tanh(acc / 30.0), {}, "tanh"),
 "many": (lambda acc, a, b, c, d: F.silu(acc + a) * b + c * torch.cos(d), dict.fromkeys("abcd", (H, 2)), "silu"),
}
BY = {c.name: c for c in L.CONFIGS}
CHOOSE, LOOPS, SMS = R.choose, R.loops, R.multiprocessors
# Alternatives of main loops: operands that leave L2 first, and without their prefetch into L2.
class Alternative:
    """A configuration under another file's name: p prefetches late blocks into L2, e evicts the operand first."""
    def __init__(self, base, letter): self.base, self.name = base, base.name + letter
    def __getattr__(self, what): return getattr(self.base, what)
ALT = {c + v: Alternative(BY[c], v) for c in "16" for v in "pe"}
ADD, SOURCE = V._Forward.add, R.forward_source
def direct_add(self, kind, size):
    """Every (M, N) operand is loaded by its thread, as in main."""
    if kind != V.FULL: return ADD(self, kind, size)
    name, words = f"f{self.full}", f"words->words[{self.full}]"
    read = f"{name}.read(a->full[{self.full}], *place, *a);"
    self.loads += [f"FullWords {name};", read, f"{name}.put({words});"]
    self.before.append(f"FullWords {name};")
    self.reads.append(f"{name}.take({words});" if self.ahead else read)
    self.exchanges.append(f"{name}.exchange();"); self.values.append(f"{name}.at(i, j, e)"); self.full += 1
def direct_source(*a): return SOURCE(*a).replace("fusedops_reads() { return 1; }", "fusedops_reads() { return 0; }")
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
    direct = config == "1d"
    if config: R.choose = lambda *a: BY["1"] if direct else ALT.get(config) or BY[config]
    if direct: V._Forward.add, R.forward_source = direct_add, direct_source
    if loops is not None: R.loops = lambda *a: loops
    y = p.run(*args, keep) if args else (p.forward_source(torch.bfloat16, loops),)
    R.choose, R.loops, V._Forward.add, R.forward_source = CHOOSE, LOOPS, ADD, SOURCE
    return p, y
def fits(name, config): return (name, config) != ("many", "6")
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
def graph_time(fns, sets, rounds=7):
    gs = []
    for fn in fns:
        for s in sets: fn(*s)
        torch.cuda.synchronize(); g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            for _ in range(3):
                for s in sets: fn(*s)
        gs.append(g)
    t = [[] for _ in fns]
    for r, (i, g) in ((r, q) for r in range(rounds + 1) for q in random.sample(list(enumerate(gs)), len(gs))):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); g.replay(); b.record(); b.synchronize()
        if r: t[i].append(a.elapsed_time(b) * 1e3 / 3 / len(sets))
    return [sorted(q)[len(q) // 2] for q in t]
def backward_forms(m, n, k):
    """The generated kernels of backward alone, in other forms of the text; us, and TB/s of the first."""
    whole = R.backward_source
    for name in ("gelu", "silu", "softcap", "tanh_scaled", "relu_res", "gate_row"):
        sets = []
        for _ in range(3):
            f, _, names, kinds, act = program(name)
            acc, dy = (torch.randn(m, n, device="cuda").bfloat16() for _ in range(2))
            sets.append((acc, dy, make(m, n, 8, torch.bfloat16, kinds, names)[2]))
        fns, said = [], []
        for rows, unroll, bounds in ((64, 2, ""), (64, 1, ""), (64, 4, ""), (32, 2, ""), (32, 4, ""), (128, 2, ""), (64, 2, ", 4"), (64, 2, ", 6"), (64, 4, ", 4")):
            B.ROWS_PER_BLOCK = R.ROWS_PER_BLOCK = rows
            R.backward_source = lambda *a: whole(*a).replace("#pragma unroll 2", f"#pragma unroll {unroll}").replace("__launch_bounds__(256) fusedops_backward", f"__launch_bounds__(256{bounds}) fusedops_backward").replace("+ 63) / 64", f"+ {rows - 1}) / {rows}")
            _, p, names, _, _ = program(name)
            wanted = ["acc", *(q for q in names if q not in ("res",))]
            def call(acc, dy, v, p=p, wanted=wanted, rows=rows):
                B.ROWS_PER_BLOCK = R.ROWS_PER_BLOCK = rows
                return p.run_backward(dy, acc, v, wanted)
            call(*sets[0]); fns.append(call); said.append(f"{rows},{unroll}{bounds}")
        R.backward_source = whole
        t = graph_time(fns, sets)
        full = 3 + 2 * sum(kinds[q][0] == H and q != "res" for q in names) + 0
        print(f"backward {m}x{n}/{name} {full * 2 * m * n / t[0] * 1e-6:.2f} TB/s", " ".join(f"{a}:{b:.1f}" for a, b in zip(said, t)), flush=True)
    B.ROWS_PER_BLOCK = R.ROWS_PER_BLOCK = 64
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
    for c in ("1p", "6p", "1e", "6e"): check("relu_res", 1000, 520, 200, torch.bfloat16, c, None, 2)
    print(f"right: {good} ok, {bad} BAD, {time.time() - START:.0f} s", flush=True)
    backward_forms(8192, 4096, 8)
    print("us; config (k: keeps the product): natural, then unrolled/looped; chosen fwd and step over built-in's", flush=True)
    for (m, n, k), name in itertools.product([(8192, 4096, 1024), (8192, 4096, 4096), (16384, 2048, 2048)], [e for e in EX if e != "many"]):
        if time.time() - START > LIMIT: return print("out of time")
        f, p, names, kinds, act = program(name)
        sets = [make(m, n, k, torch.bfloat16, kinds, names) for _ in range(3)]
        bias = torch.randn(n, device="cuda").bfloat16()
        raw = [(a, b, c) for a, b, c in sets]
        full = H in [q[0] for q in kinds.values()]
        ways = [(c, None, keep) for keep in (False, True) for c in ("1", "5", "6") if c != "6" or name != "many"]
        if not full and name == "gelu": ways += [(c, q, keep) for keep in (False, True) for c in ("1", "5", "6") for q in (False, True)]
        if full and name != "many": ways += [(c, None, keep) for c in ("1p", "6p", "1e", "6e") for keep in (False, True)]
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
        s = graph_time([step, built], raw, 5)
        print(f"{m}x{n}x{k}/{name}", " ".join(f"{c}:{'/'.join(v)}" for c, v in shown.items()),
              f"| {t[1]:.0f} {t[0]:.0f} {t[0] / t[1]:.3f} | {s[0]:.0f} {s[1]:.0f} {s[1] / s[0]:.3f}", flush=True)
main()
