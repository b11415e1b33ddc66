# rows2.sh: about 210 s. Stencil gradients, norm backward of long rows, short softmax rows, column sums of few columns, small reductions: tests, times against torch, wild of fresh seeds, sanitizers.
OUT=${OUT:-/tmp/out}; mkdir -p "$OUT/rows2"; PY=${PY:-python3}
export PYTHONPATH=$PYTHONPATH:${SITE:-/tmp/site}
timeout 140 $PY -m pytest tests/stencil tests/rows/test_softmax_short.py tests/rows/test_norm_backward_long.py tests/rows/test_norm.py tests/reduce tests/elementwise tests/scan -q -n 14 -m "not slow" -p no:cacheprovider 2>&1 | grep -E "^(FAILED|ERROR|E  )|passed|failed" | cut -c1-150 | tail -8
timeout 110 $PY - <<'PYEOF' 2> /dev/null | tee "$OUT/rows2/shapes.txt" | cut -c1-110
import torch, fusedops
from fusedops._timing import timing
from fusedops.reference import stencil as ref_stencil
dev = torch.device("cuda")
pace = timing.Pace(400.0, 10.0, 1e4)
B, F, H, D = torch.bfloat16, torch.float32, torch.float16, torch.float64
o = torch.ops.fusedops
torch.manual_seed(0)
torch.backends.cudnn.allow_tf32 = False
def time_of(name, sets, ours, eager, size):
    t = timing.interleave({k: timing.prepare(c, sets, dev, pace) for k, c in (("o", ours), ("e", eager))}, 3, dev, 10.0)
    print(f"{t['e'].us / t['o'].us:5.2f} {name}: {t['o'].us:.1f} us, torch {t['e'].us:.1f}, {size / t['o'].us * 1e-3:.0f} GB/s", flush=True)
def err(got, want):
    return ((got.double() - want).norm() / want.norm()).item()
def sten(shape, dims, k, padding, own, dtype):
    w = torch.randn(*((shape[-dims - 1],) if own else ()), *(k,) * dims, device=dev, dtype=dtype)
    n = max(1, timing.num_sets(2 * torch.Size(shape).numel() * dtype.itemsize, dev))
    sets = [(torch.randn(shape, device=dev, dtype=dtype), torch.randn(shape, device=dev, dtype=dtype)) for _ in range(n)]
    code = {"zeros": 0, "reflect": 1, "replicate": 2, "circular": 3}[padding]
    def eager(x, dy):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(ref_stencil(x, w, 1.0, dims, padding), x, dy)[0]
    ours = lambda x, dy: o.stencil_backward(dy, x, w, 1.0, dims, code, True, False)[0]
    x, dy = sets[0]
    xd = x.double().requires_grad_()
    want = torch.autograd.grad(ref_stencil(xd, w.double(), 1.0, dims, padding), xd, dy.double())[0]
    e = err(ours(x, dy), want)
    if e > 5e-3 or not torch.equal(ours(x, dy), ours(x, dy)): print("WRONG stencil", shape, e)
    both = (lambda x, dy: o.stencil_backward(dy, x, w, 1.0, dims, code, True, True))
    def step(x, dy):
        x, v = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.autograd.grad(ref_stencil(x, v, 1.0, dims, padding), (x, v), dy)
    time_of(f"stencil back {tuple(shape)} k{k} {padding} {str(dtype)[6:]}", sets, both, step, 4 * x.numel() * dtype.itemsize)
def norm(rows, n, dtype, rms):
    x, dy = (torch.randn(rows, n, device=dev, dtype=dtype) for _ in range(2))
    w = torch.randn(n, device=dev, dtype=dtype)
    c = D if dtype == D else F
    mean = None if rms else x.to(c).mean(1)
    rstd = ((x.to(c) - (0 if rms else mean[:, None])).pow(2).mean(1) + 1e-5).rsqrt()
    if rms: ours = lambda dy, x: o.rms_norm_backward(dy, None, x, w, rstd, 1, True, True)
    else: ours = lambda dy, x: o.layer_norm_backward(dy, None, x, w, mean, rstd, 1, True, True, True)
    aten = torch.ops.aten.native_layer_norm_backward
    eager = lambda dy, x: aten(dy, x, [n], mean[:, None] if mean is not None else torch.zeros_like(rstd)[:, None], rstd[:, None], w, torch.zeros_like(w), [True, True, not rms])
    xd, wd = x.double().requires_grad_(), w.double().requires_grad_()
    y = torch.nn.functional.rms_norm(xd, (n,), wd, 1e-5) if rms else torch.nn.functional.layer_norm(xd, (n,), wd, torch.zeros_like(wd), 1e-5)
    want = torch.autograd.grad(y, (xd, wd), dy.double())
    got = ours(dy, x)
    e = [err(a, b) for a, b in zip(got, want)]
    if max(e) > (6e-3 if dtype.itemsize == 2 else 2e-5) or not torch.equal(ours(dy, x)[1], got[1]): print("WRONG norm", rows, n, e)
    k = max(1, timing.num_sets(2 * x.numel() * dtype.itemsize, dev))
    sets = [(torch.randn_like(x), torch.randn_like(x)) for _ in range(k)]
    time_of(f"{'rms' if rms else 'layer'} norm backward ({rows}, {n}) {str(dtype)[6:]}", sets, ours, eager, 3 * x.numel() * dtype.itemsize)
def soft(op, rows, n, dtype):
    g, ours = getattr(torch.nn.functional, op), getattr(fusedops, op)
    k = max(1, timing.num_sets(rows * n * dtype.itemsize, dev))
    sets = [(torch.randn(rows, n, device=dev, dtype=dtype),) for _ in range(k)]
    x = sets[0][0]
    e = err(ours(x, -1), g(x.double(), -1))
    if e > 5e-3: print("WRONG", op, rows, n, e)
    time_of(f"{op} ({rows}, {n}) {str(dtype)[6:]}", sets, lambda x: ours(x, -1), lambda x: g(x, -1), 2 * x.numel() * dtype.itemsize)
def red(kind, shape, dim, dtype, t=False):
    n = max(1, timing.num_sets(torch.Size(shape).numel() * dtype.itemsize, dev))
    def make(): return torch.randn(shape[::-1], device=dev, dtype=dtype).t() if t else torch.randn(shape, device=dev, dtype=dtype)
    sets = [(make(),) for _ in range(n)]
    f, g = getattr(fusedops, kind), getattr(torch, kind)
    x = sets[0][0]
    if kind == "sum" and err(f(x, dim), x.double().sum(dim)) > 1e-2: print("WRONG", kind, shape)
    if kind in ("any", "argmax") and not torch.equal(f(x, dim), g(x, dim)): print("WRONG", kind, shape)
    time_of(f"{kind} {shape} d{dim} {str(dtype)[6:]}{' transposed' if t else ''}", sets, lambda x: f(x, dim), lambda x: g(x, dim), x.numel() * dtype.itemsize)
def cols(shape, dtype):
    dy, x = (torch.randn(shape, device=dev, dtype=dtype) for _ in range(2))
    n = max(1, timing.num_sets(2 * dy.numel() * dtype.itemsize, dev))
    sets = [(torch.randn_like(dy), torch.randn_like(dy)) for _ in range(n)]
    ours, eager = (lambda d, x: o.scale_bias_act_backward(d, x, None, x[0], 1, True, False, True)), (lambda d, x: (torch.where(x > 0, d, 0), d.sum(0)))
    got = ours(dy, x)[2].double(); want = ours(dy.double(), x.double())[2]
    if err(got, want) > 2e-2: print("WRONG cols", shape)
    time_of(f"relu backward {shape} {str(dtype)[6:]}", sets, ours, eager, 3 * dy.numel() * dtype.itemsize)
def addrow(shape, dtype):
    n = max(1, timing.num_sets(2 * torch.Size(shape).numel() * dtype.itemsize, dev))
    sets = [(torch.randn(shape, device=dev, dtype=dtype), torch.randn(shape[-1], device=dev, dtype=dtype)) for _ in range(n)]
    x, r = sets[0]
    if not torch.equal(fusedops.add(x, r), x + r): print("WRONG add", shape)
    time_of(f"add row {shape} {str(dtype)[6:]}", sets, fusedops.add, torch.add, 2 * x.numel() * dtype.itemsize)
def seg(rows, segments, columns, dtype):
    lengths = torch.zeros(segments, dtype=torch.int64); lengths[3] = rows - segments + 1; lengths[lengths == 0] = 1; lengths[5] += rows - lengths.sum()
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).cuda()
    n = max(1, timing.num_sets(rows * columns * dtype.itemsize, dev))
    sets = [(torch.randn(rows, columns, device=dev, dtype=dtype),) for _ in range(n)]
    x = sets[0][0]
    g = lambda x: torch.segment_reduce(x, "sum", offsets=offsets, axis=0)
    f = lambda x: fusedops.segment_reduce(x, offsets)
    want = torch.stack([x[a:b].double().sum(0) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist())])
    if err(f(x), want) > 5e-3: print("WRONG segment", err(f(x), want))
    time_of(f"segment_sum ({rows}, {columns}) to {segments} {str(dtype)[6:]}", sets, f, g, x.numel() * dtype.itemsize)
P, R, C = "replicate", "reflect", "circular"
def safe(f, *a):
    try: f(*a)
    except Exception as e: print("FAILED", f.__name__, a[:3], str(e)[:90], flush=True)
for a in [((1, 136, 167, 32), 2, 3, P, True, F), ((64, 64, 64, 117), 2, 7, R, True, F), ((16, 128, 96, 96), 2, 7, R, True, B), ((64, 1, 8, 54), 2, 5, C, False, H),
          ((64, 22, 1393), 1, 5, C, True, F), ((8, 64, 56, 56), 2, 3, R, True, B), ((8, 16, 14, 20, 33), 3, 3, P, True, F)]: safe(sten, *a)
for a in [(256, 100_000, B, False), (256, 100_000, B, True), (64, 131_072, B, False), (1024, 70_001, B, False), (300, 40_000, F, False), (2048, 80_000, B, True), (888, 119, B, False), (1000, 100, F, True), (1024, 128, B, False)]: safe(norm, *a)
S, L = "softmax", "log_softmax"
for a in [(S, 4096, 100, B), (S, 4096, 101, B), (L, 23_992, 19, F), (L, 8, 247, F), (S, 40_000, 61, H), (S, 8000, 90, H), (S, 3000, 250, F)]: safe(soft, *a)
for a in [("sum", (7, 3984), 0, B, True), ("any", (7, 39391), 0, B), ("sum", (5000, 60, 301), 1, B), ("argmax", (5000, 60, 301), 1, B), ("sum", (200, 999, 67), 1, F), ("sum", (100_000, 17), 1, F), ("sum", (5000, 333, 71), 1, B)]: safe(red, *a)
for a in [((521_065, 3), F), ((521_065, 3), B), ((100_001, 67), B), ((65_536, 1024), B)]: safe(cols, *a)
for a in [((28_272, 8), B), ((1_498_668, 3), B), ((65_536, 256), B)]: safe(addrow, *a)
def scan(op, shape, dim, dtype):
    n = max(1, timing.num_sets(2 * torch.Size(shape).numel() * dtype.itemsize, dev))
    sets = [(torch.randn(shape, device=dev, dtype=dtype),) for _ in range(n)]
    f, g = getattr(fusedops, op), getattr(torch, op)
    x = sets[0][0]
    if op == "cumsum" and err(f(x, dim), g(x.double(), dim)) > 5e-3: print("WRONG scan", shape)
    if op == "cummax" and not torch.equal(f(x, dim)[0], g(x, dim)[0]): print("WRONG scan", shape)
    time_of(f"{op} {shape} d{dim} {str(dtype)[6:]}", sets, lambda x: f(x, dim), lambda x: g(x, dim), 2 * x.numel() * dtype.itemsize)
for a in [("cumsum", (29, 8, 137408), 1, B), ("cumsum", (216, 3, 64), 1, F), ("cummax", (64, 16, 3001), 1, F), ("cumsum", (64, 17, 3001), 1, F)]: safe(scan, *a)
for a in [(768, 168, 320, B), (1000, 30, 256, F)]: safe(seg, *a)
PYEOF
timeout 60 $PY -m fusedops bench wild --count 24 --seed 63 --budget 30 --family reduce,norm,softmax,scan,elementwise,stencil,segment --out "$OUT/rows2/" > "$OUT/rows2/log.txt" 2>&1
grep FAILED "$OUT/rows2/log.txt" | cut -c1-120 | sort -u | head -4
sed -n '/^wild: over/,$p' "$OUT/rows2/log.txt" | awk '/, seed [0-9]+ +[0-9]/ || ($1 + 0 > 0 && $1 + 0 < 1.0)' | cut -c1-140 | head -30
cat > /tmp/rows2_case.py <<'PYEOF'
import torch, fusedops
o = torch.ops.fusedops
for padding in (1, 2, 3):
    for shape, w, dims in (((2, 3, 37, 30), (3, 3, 3), 2), ((3, 41, 24), (7, 7), 2), ((2, 1030), (5,), 1), ((2, 6, 9, 12), (3, 3, 3), 3)):
        x = torch.randn(shape, device="cuda")
        o.stencil_backward(x, x, torch.randn(w, device="cuda"), 1.0, dims, padding, True, False)
for dtype in (torch.bfloat16, torch.float32):
    for n in (72_000, 70_001):
        x = torch.randn(20, n, device="cuda", dtype=dtype); r = torch.rand(20, device="cuda"); w = x[0].clone()
        o.layer_norm_backward(x, x, x, w, r, r, 1, True, True, True)
        o.rms_norm_backward(x, None, x, w, r, 1, True, True)
    for rows, n in ((9000, 100), (3000, 101), (40, 60)):
        y = fusedops.softmax(torch.randn(rows, n, device="cuda", dtype=dtype), -1)
        o.softmax_backward(y, y, 1, False, 0)
    for shape in ((7, 3001), (40, 60, 301), (5, 200, 95), (4000, 7)):
        x = torch.randn(shape, device="cuda").to(dtype)
        for d in range(len(shape)): fusedops.sum(x, d), fusedops.argmax(x, d), fusedops.any(x, d)
    s = torch.tensor([0, 5, 5, 500, 700], device="cuda")
    fusedops.segment_reduce(torch.randn(700, 300, device="cuda", dtype=dtype), s), fusedops.segment_reduce(torch.randn(700, 300, device="cuda", dtype=dtype), s, "max")
    fusedops.add(torch.randn(1001, 5, device="cuda", dtype=dtype), torch.randn(5, device="cuda", dtype=dtype))
    fusedops.add(torch.randn(1001, 8, device="cuda", dtype=dtype), torch.randn(8, device="cuda", dtype=dtype))
    fusedops.cumsum(torch.randn(7, 9, 264, device="cuda", dtype=dtype), 1), fusedops.cummax(torch.randn(7, 5, 33, device="cuda", dtype=dtype), 1)
    x = torch.randn(20_005, 3, device="cuda", dtype=dtype)
    o.scale_bias_act_backward(x, x, x[0], x[0], 1, True, True, True)
torch.cuda.synchronize()
print("ran", flush=True)
PYEOF
for tool in memcheck racecheck; do
  timeout 60 compute-sanitizer --tool $tool $PY /tmp/rows2_case.py > "$OUT/rows2/$tool.txt" 2>&1 &
done; wait
for tool in memcheck racecheck; do echo "$tool: $(tail -2 "$OUT/rows2/$tool.txt" | tr '\n' ' ' | cut -c1-130)"; done
