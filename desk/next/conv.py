"""Depthwise kernels and a first layer's gradients: against float64, main's kernels and torch's. `small`: each once, for the sanitizer."""
import sys, torch, torch.nn.functional as F, fusedops
ops, aten = torch.ops.fusedops, torch.ops.aten
torch.backends.cudnn.benchmark = True; torch.manual_seed(0)
def shifted(t):
    """At an address of 4 bytes, which has main's kernels (4 x 4 results, no shared memory)."""
    b = torch.empty(t.numel() + 2, dtype=t.dtype, device=t.device)[2:].view(t.shape); return b.copy_(t)
def make(n, c, h, k, s, dt):
    x = torch.randn(n, h, h, c, device="cuda").to(dt); w = (torch.randn(c, k, k, device="cuda") / k).to(dt)
    g = (s, s, k // 2, k // 2); y = ops.depthwise_conv(x, w, *[None] * 6, *g, 0.0, 0)
    return x, w, g, y, torch.randn_like(y)
if sys.argv[1:] == ["small"]:
    for dt in (torch.bfloat16, torch.float16):
        for n, c, h, k, s in ((2, 136, 9, 3, 1), (1, 96, 30, 3, 2), (2, 200, 14, 5, 1), (1, 40, 33, 5, 2), (3, 8, 6, 3, 1), (1, 48, 7, 5, 1)):
            x, w, g, y, dy = make(n, c, h, k, s, dt); v = torch.rand(c, device="cuda")
            ops.depthwise_conv(x, w, None, v, v, v, v, dy, *g, 1e-5, 4); ops.depthwise_conv_backward(dy, x, w, *g, True, True)
        for o, k in ((64, 7), (24, 3), (48, 3), (16, 7)) if hasattr(ops, "first_conv_image") else ():
            x = torch.randn(2, 33, 37, 3, device="cuda").to(dt); w = torch.randn(o, k, k, 3, device="cuda").to(dt)
            y = ops.first_conv(x, w, *[None] * 5, 2, 2, k // 2, k // 2, 0.0, 0); ops.first_conv_image(y, x, w, 2, 2, k // 2, k // 2)
    torch.cuda.synchronize(); print("ran"); sys.exit()
junk = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
def us(calls, rounds=11):
    for c in calls: c(); c()
    t = [[] for _ in calls]
    for _ in range(rounds):
        for i, c in enumerate(calls):
            junk.fill_(0); a, b = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            a.record(); c(); b.record(); torch.cuda.synchronize(); t[i].append(a.elapsed_time(b) * 1e3)
    return [sorted(x)[rounds // 2] for x in t]
err = lambda a, b: float((a.double() - b).norm() / b.norm())
print(torch.cuda.get_device_name(), "us: torch / main / new; error is that of eager's")
for n, c, h, k, s in ((64, 96, 112, 3, 2), (64, 144, 56, 5, 2), (64, 480, 14, 5, 1), (64, 1152, 7, 3, 1), (64, 144, 56, 3, 1), (64, 240, 28, 5, 1)):
    x, w, g, y, dy = make(n, c, h, k, s, torch.bfloat16)
    X, W, DY = x.movedim(-1, 1), w[:, None].contiguous(memory_format=torch.channels_last), dy.movedim(-1, 1)
    conv = lambda: F.conv2d(X, W, None, s, k // 2, 1, c)
    cb = lambda m: aten.convolution_backward(DY, X, W, None, [s, s], [k // 2] * 2, [1, 1], False, [0, 0], c, m)
    L = [X.double().requires_grad_(), W.double().requires_grad_()]; z = F.conv2d(*L, None, s, k // 2, 1, c); G = torch.autograd.grad(z, L, DY.double()); z = z.detach()
    eager, got = cb([True, True, False]), ops.depthwise_conv_backward(dy, x, w, *g, True, True)
    same = all(torch.equal(a, b) for a, b in zip(got, ops.depthwise_conv_backward(dy, x, w, *g, True, True)))
    e = err(y.movedim(-1, 1), z) / err(conv(), z), err(got[0].movedim(-1, 1), G[0]) / err(eager[0], G[0]), err(got[1][:, None], G[1]) / err(eager[1], G[1])
    xs, dys, v = shifted(x), shifted(dy), torch.rand(c, device="cuda") + .5
    f = lambda a: lambda: ops.depthwise_conv(a, w, *[None] * 6, *g, 0.0, 0)
    fn = lambda a: lambda: ops.depthwise_conv(a, w, None, v, v, v, v, None, *g, 1e-5, 4)
    b = lambda d, i: lambda: ops.depthwise_conv_backward(d, x, w, *g, i == 0, i == 1)
    t = us([conv, f(xs), f(x), fn(xs), fn(x), lambda: cb([True, False, False]), b(dys, 0), b(dy, 0), lambda: cb([False, True, False]), b(dys, 1), b(dy, 1), lambda: x.clone()])
    print("C%d H%d k%ds%d: y %.1f %.1f %.1f; +norm silu %.1f %.1f; dx %.1f %.1f %.1f; dw %.1f %.1f %.1f; copy x %.1f;" % (c, h, k, s, *t), "error y %.2f dx %.2f dw %.2f" % e, "" if same else "TWO RUNS DIFFER", flush=True)
    del L, G, z, eager, got
for n, h, o, k in ((64, 224, 64, 7), (64, 224, 32, 3)) if hasattr(ops, "first_conv_image") else ():
    x = torch.randn(n, h, h, 3, device="cuda").bfloat16(); w = (torch.randn(o, k, k, 3, device="cuda") / (9 * k)).bfloat16(); g = (2, 2, k // 2, k // 2)
    y = ops.first_conv(x, w, *[None] * 5, *g, 0.0, 0); dy = torch.randn_like(y); X, W, DY = (a.movedim(-1, 1) for a in (x, w, dy))
    cb = lambda m: aten.convolution_backward(DY, X, W, None, [2, 2], [k // 2] * 2, [1, 1], False, [0, 0], 1, m)
    l = X[:4].double().requires_grad_(); G = torch.autograd.grad(F.conv2d(l, W.double(), None, 2, k // 2), l, DY[:4].double())[0]
    d = ops.first_conv_image(dy, x, w, *g)
    t = us([lambda: cb([True, False, False]), lambda: ops.first_conv_image(dy, x, w, *g), lambda: ops.first_conv(x, w, *[None] * 5, *g, 0.0, 0), lambda: ops.first_conv_weight(dy, x, w, *g), lambda: y.clone()], 7)
    print("first %dx%d to %d: dx torch %.1f new %.1f; y %.1f dw %.1f; copy y %.1f;" % (k, k, o, *t), "error %.2f" % (err(d[:4].movedim(-1, 1), G) / err(cb([True, False, False])[0][:4], G)), torch.equal(d, ops.first_conv_image(dy, x, w, *g)), flush=True)
# 1x1 in evaluation, by form: the norm inside cuDNN's graph (main's choice), folded before it, folded before our product (the patch's, but for few outputs).
from fusedops.ops import conv as C, conv_graph as G
from fusedops.ops.conv_problem import conv_problem
def replay(c):
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        for _ in range(3):
            if c() is None: return None
    torch.cuda.synchronize(); g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g): c()
    return g.replay
relu = fusedops._core.activation.CODES["relu"]; last = dict(memory_format=torch.channels_last)
for n, c, h, o in ((64, 512, 28, 128), (64, 1024, 14, 256), (64, 2048, 7, 512), (64, 96, 56, 24), (64, 256, 56, 64)) if G.is_installed() else ():
    x = torch.randn(n, c, h, h, device="cuda").bfloat16().to(**last); w = (torch.randn(o, c, 1, 1, device="cuda") / c ** .5).bfloat16().to(**last)
    m, v, g, b = (torch.rand(o, device="cuda") + .5 for _ in range(4)); p = conv_problem("x", x, w, 1, 0, 1, 1); call = C.Fused(x, w, None, C.Norm(m, v, g, b), None, p, relu, 1e-5)
    def fold():
        f, s = call.folded(); return call.graph(f, G.Behind(s))
    def gemm():
        f, s = ops.batch_norm_fold(w.flatten(1), None, m, v, g, b, 1e-5); return ops.linear(x.movedim(1, -1), f, s, relu, False)
    with torch.no_grad(): forms = {k: replay(f) for k, f in {"inside": lambda: call.graph(w, G.Behind(None, m, v, g, b, 1e-5)), "fold": fold, "gemm": gemm}.items()}
    forms = {k: f for k, f in forms.items() if f}; print(f"1x1 {c}->{o} H{h}:", " ".join(f"{k} {t:.1f}" for k, t in zip(forms, us(list(forms.values())))), flush=True)
