"""time OUT [torch]: ours (and torch) on known and random shapes; show NEW OLD: what they say; small: a call of each for a sanitizer."""
import json, math, random, sys
B, F, H = "bfloat16", "float32", "float16"
KNOWN = [("red", "argmax", (5000, 60, 301), 1, B), ("red", "any", (7, 39391), 0, B), ("red", "sum", (24, 3456192), 0, F), ("red", "amax", (1370, 8, 576), 1, H),
         ("red", "any", (200, 64, 2491), 1, H), ("red", "prod", (8, 125), 0, H), ("red", "argmax", (4000001, 5), 0, B), ("red", "sum", (3, 77, 301), 1, B), ("red", "sum", (5000, 60, 301), 1, B),
         ("norm", "", (888, 119), 0, B), ("norm", "", (1024, 128), 0, B), ("norm", "", (1000, 100), 0, F),
         ("soft", "fwd", (8, 250264), 1, F), ("soft", "bwd", (8, 250264), 1, F), ("soft", "fwd", (3000, 250), 1, F),
         ("scan", "cumsum", (64, 17, 3001), 1, F), ("scan", "cummax", (351, 331, 303), 0, B), ("scan", "cumsum", (311592,), 0, F), ("scan", "cumprod", (89697,), 0, B), ("scan", "cummax", (64,), 0, B),
         ("act", 1, (100001, 67), 0, B), ("act", 1, (65536, 1024), 0, B), ("act", 3, (65536, 1024), 0, B), ("act", 1, (271, 79), 0, B),
         ("topk", 5, (112768, 8), 1, F), ("topk", 3, (85400, 35), 1, F), ("topk", 20, (20000, 300), 1, B)]
EXTRA = [("ew", "bias_act", (271, 79), 0, B), ("ew", "bdr", (4, 7), 0, H), ("ew", "add", (3000, 79), 0, B), ("ew", "add", (300000, 7), 0, B), ("ew", "add", (100000, 33), 0, F), ("ew", "bdr", (20000, 15), 0, B), ("ew", "add", (700, 300), 1, B), ("ew", "bdr", (500, 201), 1, F),
         ("seg", "sum", (768, 320, 168), 0, B), ("seg", "max", (768, 320, 168), 0, B), ("seg", "sum", (1500, 64, 40), 0, F), ("seg", "sum", (2000, 500, 300), 0, B), ("seg", "sum", (4000, 33, 500), 0, F), ("seg", "sum", (45, 8, 1), 0, F), ("seg", "sum", (9000, 1, 200), 0, F),
         ("sten", "same", (8, 64, 8, 13), 3, H), ("sten", "same", (1, 149, 54, 17), 5, H), ("sten", "same", (64, 256, 7, 7), 3, B), ("sten", "same", (2, 30, 9, 9), 5, F),
         ("scan", "cummax", (216, 64), 1, B), ("scan", "cumsum", (456,), 0, B), ("scan", "cumsum", (2000, 61), 1, F), ("scan", "cummax", (10000, 100), 1, F), ("scan", "cumsum", (100000, 128), 1, B), ("scan", "cumsum", (100000, 100), 1, F), ("scan", "cumsum", (700, 3000), 1, F)]
def fresh(r, count=24):
    log = lambda a, b: int(math.exp(r.uniform(math.log(a), math.log(b + 1))))
    for _ in range(count):
        yield "ew", r.choice(("add", "bias_act", "bdr")), (log(1, 100000), log(1, 600)), r.choice((0, 0, 1)), r.choice((B, H, F))
        rows = log(1, 8000)
        yield "seg", r.choice(("sum", "sum", "max")), (rows, log(1, 512), log(1, rows)), 0, r.choice((B, F))
        yield "sten", "same", (log(1, 16), log(1, 256), log(4, 40), log(4, 40)), r.choice((3, 3, 5)), r.choice((B, H, F))
        yield "scan", r.choice(("cumsum", "cummax")), (log(1, 30000), log(2, 2000)), 1, r.choice((B, F))
        yield "soft", r.choice(("fwd", "fwd", "bwd")), (log(100, 400000), log(8, 256)), 1, r.choice((B, H, F, F))
        yield "norm", "", (log(64, 1000), log(8, 500)), 0, r.choice((B, H, F))
        yield "act", r.choice((1, 3)), (log(1000, 100000), log(17, 700)), 0, r.choice((B, H, F))
def draw(r, count=24):
    log = lambda a, b: int(math.exp(r.uniform(math.log(a), math.log(b + 1))))
    odd = lambda n: n | 1 if r.random() < 0.4 else max(n // 8 * 8, 8) if r.random() < 0.6 else n
    cut = lambda s: s if math.prod(s) <= 1 << 26 else cut(tuple(n // 2 + 1 if n == max(s) else n for n in s))
    for _ in range(count):
        dt = r.choice((B, B, H, F, F))
        form = r.choice(("few", "middle", "middle", "tall", "tiny"))
        s, d = {"few": ((log(2, 64), odd(log(1024, 1 << 22))), 0), "middle": ((log(8, 8192), log(2, 128), odd(log(16, 3000))), 1),
                "tall": ((log(10000, 4000000), log(2, 40)), 0), "tiny": ((log(2, 128), odd(log(16, 20000))), 0)}[form]
        yield "red", r.choice(("sum", "sum", "argmax", "amax", "any", "var")), cut(s), d, dt
        yield "norm", "", cut((log(64, 40000), odd(log(8, 512)))), 0, dt
        yield "soft", r.choice(("fwd", "bwd")), cut(r.choice(((log(1, 64), odd(log(60000, 400000))), (log(100, 100000), log(8, 300))))), 1, dt
        s, d = r.choice((((log(1, 300), log(17, 400), odd(log(300, 20000))), 1), ((log(1, 32), odd(log(5000, 2000000))), 1), ((log(30000, 2000000),), 0)))
        yield "scan", r.choice(("cumsum", "cumsum", "cummax")), cut(s), d, r.choice((B, F))
        if r.random() < 0.5: yield "act", r.choice((1, 1, 3)), cut((log(64, 500000), odd(log(3, 4000)))), 0, dt
KNOWN = [c for c in KNOWN if c[0] != "topk"] + EXTRA
CASES = [*KNOWN, *draw(random.Random(30)), *fresh(random.Random(31))]
name = lambda c: f"{c[0]} {c[1]} {'x'.join(map(str, c[2]))} d{c[3]} {c[4]}"
def calls(c, torch, fusedops):
    kind, op, shape, dim, dt = c
    dtype, dev, o, a = getattr(torch, dt), "cuda", torch.ops.fusedops, torch.ops.aten
    new = lambda: torch.randn(shape, device=dev, dtype=dtype)
    if kind == "red":
        f, g = getattr(fusedops, op), getattr(torch, op)
        return (lambda: (new(),)), (lambda x: f(x, dim)), (lambda x: g(x, dim))
    if kind == "ew":
        rows, n = shape
        lay = (lambda: torch.randn(rows, n + 8, device=dev, dtype=dtype)[:, :n]) if dim == 0 else (lambda: torch.randn(n, rows, device=dev, dtype=dtype).t())
        b, seed = torch.randn(n, device=dev, dtype=dtype), torch.tensor([5], device=dev)
        if op == "add": return (lambda: (lay(), new())), fusedops.add, torch.add
        if op == "bias_act": return (lambda: (lay(),)), (lambda x: fusedops.bias_act(x, b, "relu")), (lambda x: torch.relu(x + b))
        return (lambda: (lay(), new())), (lambda x, r: fusedops.bias_dropout_residual(x, b, r, 0.1, seed=seed)), (lambda x, r: torch.nn.functional.dropout(x + b, 0.1) + r)
    if kind == "seg":
        rows, n, s = shape
        g = torch.Generator().manual_seed(3); w = torch.rand(s, generator=g, dtype=torch.float64).clamp(1e-9) ** -0.9
        length = (w / w.sum() * rows).floor().long(); length[length.argmax()] += rows - length.sum()
        off = torch.cat([torch.zeros(1, dtype=torch.long), length.cumsum(0)]).to(dev)
        index = torch.repeat_interleave(torch.arange(s), length).to(dev)
        def eager(x):
            out = x.new_zeros((s, n)) if op == "sum" else x.new_full((s, n), -math.inf)
            return out.index_add_(0, index, x) if op == "sum" else out.scatter_reduce_(0, index[:, None].expand(-1, n), x, "amax")
        return (lambda: (torch.randn(rows, n, device=dev, dtype=dtype),)), (lambda x: fusedops.segment_reduce(x, off, op)), eager
    if kind == "sten":
        from fusedops.reference import stencil as ref
        w = torch.randn(shape[1], dim, dim, device=dev, dtype=dtype)
        return (lambda: (new(),)), (lambda x: fusedops.stencil2d(x, w)), (lambda x: ref(x, w.to(x.dtype), 1.0, 2, "zeros"))
    if kind == "norm":
        n, rows = shape[1], shape[0]
        w, b, m, s = torch.randn(n, device=dev, dtype=dtype), torch.randn(n, device=dev, dtype=dtype), torch.zeros(rows, 1, device=dev), torch.ones(rows, 1, device=dev)
        return (lambda: (new(), new())), (lambda d, x: o.layer_norm_backward(d, None, x, w, m.view(-1), s.view(-1), 1, True, True, True)), (lambda d, x: a.native_layer_norm_backward(d, x, [n], m, s, w, b, [True] * 3))
    if kind == "act":
        b, up = torch.zeros(shape[1], device=dev, dtype=dtype), (a.threshold_backward if op == 1 else a.gelu_backward)
        def eager(d, x):
            g = up(d, x, 0) if op == 1 else up(d, x, approximate="tanh")
            return g, g.sum(0)
        return (lambda: (new(), new())), (lambda d, x: o.scale_bias_act_backward(d, x, None, b, op, True, False, True)[::2]), eager
    if kind == "soft" and op == "fwd": return (lambda: (new(),)), (lambda x: fusedops.softmax(x, 1)), (lambda x: torch.softmax(x, 1))
    if kind == "soft": return (lambda: (new(), torch.softmax(new(), 1))), (lambda d, y: o.softmax_backward(d, y, 1, False, 0)), (lambda d, y: a._softmax_backward_data(d, y, 1, dtype))
    if kind == "scan":
        make = (lambda: (1 + new() * 0.01,)) if op == "cumprod" else (lambda: (new(),))
        f, g = getattr(fusedops, op), getattr(torch, op)
        return make, (lambda x: f(x, dim)), (lambda x: g(x, dim))
    return (lambda: (new(),)), (lambda x: fusedops.topk(x, op)), (lambda x: torch.topk(x, op))
def wrong(c, x, ours, eager, torch):
    first = lambda y: y if isinstance(y, torch.Tensor) else y[0]
    got = ours(*x)
    for p, q in zip(*(([y] if isinstance(y, torch.Tensor) else y) for y in (got, ours(*x)))):
        if not torch.equal(p, q): return "two runs differ"
    if c[1] == "bdr": return None if torch.equal(got, ours(*(t.contiguous() for t in x))) else "layouts differ"
    if c[0] == "seg" and c[1] == "max":
        want = eager(*x)
        return None if torch.equal(got, torch.where(want == -math.inf, 0, want)) else "other"
    if c[1] == "argmax": return None if torch.equal(x[0].gather(c[3], got.unsqueeze(c[3])).squeeze(c[3]), x[0].amax(c[3])) else "not the largest"
    if c[1] == "any": return None if torch.equal(got, eager(*x)) else "other"
    if c[1] in ("cummax", "amax") or c[0] == "topk": return None if torch.equal(first(got), first(eager(*x))) else "other values"
    if c[0] in ("norm", "act") or c[0] == "soft" and c[1] == "bwd": want = eager(*x)
    else: want = eager(*(t.double() for t in x))
    got, want = ([got], [want]) if isinstance(got, torch.Tensor) else (got, want)
    error = max(((p.double() - q.double()).norm() / q.double().norm().clamp_min(1e-9)).item() for p, q in zip(got, want))
    return None if error < (1e-5 if c[4] == F and c[1] != "cumsum" else 1.5e-2) else f"error {error:.2g}"
def measure(to, with_torch):
    import torch, fusedops
    from fusedops._timing import timing
    dev, pace, out = torch.device("cuda"), timing.Pace(150.0, 2.0, 1e4), {}
    torch.manual_seed(0)
    for c in CASES:
        try:
            make, ours, eager = calls(c, torch, fusedops)
            x = make()
            problem = wrong(c, x, ours, eager, torch) if with_torch else None
            if problem: print("WRONG", name(c), problem, flush=True)
            sets = [x] + [tuple(t.clone() for t in x) for _ in range(min(timing.num_sets(timing.num_bytes(x) * 2, dev), 48) - 1)]
            both = {"ours": ours} | ({"torch": eager} if with_torch else {})
            t = timing.interleave({k: timing.prepare(f, sets, dev, pace) for k, f in both.items()}, 3, dev, 2.0)
            out[name(c)] = {k: v.us for k, v in t.items()}
        except Exception as e: print("FAILED", name(c), str(e)[:70], flush=True)
    json.dump(out, open(to, "w"))
def show(new, old):
    new, old = json.load(open(new)), json.load(open(old))
    mean = lambda v: math.exp(sum(map(math.log, v)) / max(len(v), 1))
    line = lambda k: f"{new[k]['torch'] / new[k]['ours']:5.2f} {old.get(k, {'ours': math.nan})['ours'] / new[k]['ours']:5.2f} {k}: {new[k]['ours']:.1f}"
    def pairs(keys):
        for i in range(0, len(keys), 2): print(" |".join(f"{line(k):<58}" for k in keys[i:i + 2]))
    print("torch / ours, main / ours, case: us")
    known = [name(c) for c in KNOWN if name(c) in new]
    pairs(known)
    for family in ("red", "norm", "soft", "scan", "act", "ew", "seg", "sten"):
        keys = sorted((k for k in new if k.split()[0] == family and k not in known), key=lambda k: new[k]["torch"] / new[k]["ours"])
        if not keys: continue
        ratio, gain = [new[k]["torch"] / new[k]["ours"] for k in keys], sorted((old[k]["ours"] / new[k]["ours"], k) for k in keys if k in old) or [(math.nan, "")]
        print(f"{family}: {len(keys)} shapes, geomean {mean(ratio):.2f}, 5th percentile {ratio[len(keys) // 20]:.2f}; of main {mean([g for g, _ in gain]):.3f}, least {gain[0][0]:.2f} ({gain[0][1]})")
        pairs(keys[:5])
def small():
    import torch, fusedops
    for c in (("red", "argmax", (40, 60, 301), 1, B), ("red", "sum", (7, 80001), 0, B), ("red", "sum", (30001, 5), 0, F), ("red", "amax", (600, 8, 576), 1, H), ("norm", "", (600, 119), 0, B), ("act", 1, (3001, 67), 0, B), ("soft", "fwd", (2, 300001), 1, F), ("soft", "bwd", (2, 300001), 1, F),
              ("scan", "cumsum", (40, 17, 3001), 1, F), ("scan", "cumsum", (37, 61), 1, F), ("scan", "cummax", (64,), 0, B), ("scan", "cummax", (300, 100), 1, B), ("ew", "bias_act", (271, 79), 0, B), ("ew", "bdr", (40, 7), 0, H), ("ew", "add", (300, 30), 1, F), ("seg", "sum", (768, 320, 168), 0, B), ("seg", "max", (768, 33, 100), 0, F), ("sten", "same", (4, 64, 7, 7), 3, B), ("soft", "fwd", (300, 74), 1, F), ("soft", "fwd", (3000, 200), 1, F), ("act", 3, (7187, 323), 0, B), ("norm", "", (403, 57), 0, B), ("scan", "cumsum", (2, 100001), 1, F), ("scan", "cummax", (100001,), 0, B), ("topk", 5, (1001, 8), 1, F), ("topk", 20, (101, 100), 1, B), ("topk", 20, (101, 300), 1, B)):
        make, ours, _ = calls(c, torch, fusedops); ours(*make())
    torch.cuda.synchronize()
if __name__ == "__main__": {"time": lambda: measure(sys.argv[2], len(sys.argv) > 3), "show": lambda: show(*sys.argv[2:4]), "small": small}[sys.argv[1]]()
