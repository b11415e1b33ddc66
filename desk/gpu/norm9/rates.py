"""Norms that quantise: bits against the two passes and float64, then shares of a copy's rate (cold L2, interleaved, medians)."""
import sys
import torch, fusedops
O = torch.ops.fusedops
torch.manual_seed(0)
FLUSH = 300e6  # bytes that inputs rotate through
def graph(calls):
    for c in calls[:2]: c()
    torch.cuda.synchronize()
    g, keep = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(g):
        for c in calls: keep.append(c())
    return g, keep, len(calls)
def times(graphs, n=9):
    found = {name: [] for name in graphs}
    for _ in range(n):
        for name, (g, _, calls) in graphs.items():
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record(); g.replay(); b.record(); b.synchronize()
            found[name].append(a.elapsed_time(b) / calls * 1e3)
    return {name: sorted(t)[n // 2] for name, t in found.items()}
def two(x, r, w, b, rms):
    y, total, *_ = O.rms_norm(x, r, w, 1, 1e-5, False, True) if rms else O.layer_norm(x, r, w, b, 1, 1e-5, False, True)
    return (*O.fp8_quantize(y, None, None, 0, False, 0, 3, 4, False, False, False)[:4], total)
def one(x, r, w, b, rms): return O._fp8_norm(x, r, w, b, rms, 1e-5, 0, 3, 4, False)
def check(m, k):
    for rms in (True, False):
        for residual in (False, True):
            x, r = (torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            w, b = (torch.randn(k, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            r, b = r if residual else None, None if rms else b
            f, g = one(x, r, w, b, rms), two(x, r, w, b, rms)
            bytes_ = [float((p.view(torch.uint8) != q.view(torch.uint8)).float().mean()) for p, q in zip((f[0], f[2]), (g[0], g[2]))]
            total = residual and not torch.equal(f[4], g[4])
            v = (x.double() if r is None else (x.float() + r.float()).bfloat16().double())
            mu = 0 if rms else v.mean(1, keepdim=True)
            y = (v - mu) * ((v - mu).square().mean(1, keepdim=True) + 1e-5).rsqrt() * w.double() + (0 if rms else b.double())
            e = []
            for q in (f, g):
                d = q[0][:, :k].float().view(m, k // 128, 128) * q[1][:, :m].t()[..., None]
                e.append(float((d.view(m, k).double() - y).norm() / y.norm()))
            bad = max(bytes_) > 2e-3 or total or e[0] > 1.001 * e[1]
            print(f"{'BAD ' if bad else 'ok '}{m}x{k} {'rms' if rms else 'ln'}{'+res' if residual else ''}: bytes apart {bytes_[0]:.1e} {bytes_[1]:.1e}, error {e[0]:.4e} (two passes {e[1]:.4e})" if bad or (m, k) == (4096, 5120) else "", end="\n" if bad or (m, k) == (4096, 5120) else "")
shapes = [(8192, 4096), (16384, 2048), (8192, 8192), (4096, 5120), (2048, 4096)]
for s in shapes: check(*s)
print("share of a copy's rate: clusters (us) | two passes (us)   [copy: 2 bytes read, 2 written an element]")
for m, k in shapes:
    n = max(2, int(FLUSH / (2 * m * k)) + 1)
    xs, rs = ([torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(n)] for _ in range(2))
    w, b = (torch.randn(k, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    to = [torch.empty_like(x) for x in xs]
    calls = [*range(n)] * max(1, 8 // n)
    graphs = {"copy": graph([lambda i=i: to[i].copy_(xs[i]) for i in calls])}
    for rms in (True, False):
        for res in (False, True):
            bias = None if rms else b
            name = ("rms" if rms else "ln") + ("+res" if res else "")
            graphs[name] = graph([lambda i=i: one(xs[i], rs[i] if res else None, w, bias, rms) for i in calls])
            graphs["2 " + name] = graph([lambda i=i: two(xs[i], rs[i] if res else None, w, bias, rms) for i in calls])
    t = times(graphs)
    rate = 4 * m * k / t["copy"]
    line = f"{m}x{k} copy {rate / 1e3:.0f} GB/s"
    for name in ("rms", "rms+res", "ln", "ln+res"):
        size = (8 if "res" in name else 4) * m * k
        line += f" | {name} {size / t[name] / rate:.2f} ({t[name]:.1f}) {size / t['2 ' + name] / rate:.2f} ({t['2 ' + name]:.1f})"
    print(line, flush=True)
    del graphs, xs, rs, to
    torch.cuda.empty_cache()
