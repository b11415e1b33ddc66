"""Depthwise kernels against torch's; `small`: each kernel once, for the sanitizer."""
import sys, torch, torch.nn.functional as F, fusedops
ops, aten = torch.ops.fusedops, torch.ops.aten
torch.backends.cudnn.benchmark = True
def make(n, c, h, k, s, dt):
    x = torch.randn(n, h, h, c, device="cuda").to(dt); w = (torch.randn(c, k, k, device="cuda") / k).to(dt)
    g = (s, s, k // 2, k // 2); y = ops.depthwise_conv(x, w, *[None] * 6, *g, 0.0, 0)
    return x, w, g, y, torch.randn_like(y)
if sys.argv[1:] == ["small"]:
    for dt in (torch.bfloat16, torch.float16):
        for n, c, h, k, s in ((2, 130, 9, 3, 1), (1, 96, 13, 3, 2), (2, 140, 7, 5, 1), (1, 6, 11, 5, 2), (1, 5, 6, 3, 1)):
            x, w, g, y, dy = make(n, c, h, k, s, dt)
            v = torch.rand(c, device="cuda"); ops.depthwise_conv(x, w, None, v, v, v, v, dy, *g, 1e-5, 4)
            ops.depthwise_conv_backward(dy, x, w, *g, True, True)
        for o, k in ((64, 7), (24, 3), (136, 3), (24, 7)) if hasattr(ops, 'first_conv') else ():
            x = torch.randn(1, 19, 37, 3, device="cuda").to(dt); w = torch.randn(o, k, k, 3, device="cuda").to(dt); v = torch.rand(o, device="cuda")
            y = ops.first_conv(x, w, None, v, v, v, v, 2, 2, k // 2, k // 2, 1e-5, 1)
            if hasattr(ops, "first_conv_weight"): ops.first_conv_weight(y, x, w, 2, 2, k // 2, k // 2)
    torch.cuda.synchronize(); print("ran"); sys.exit()
junk = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
def us(calls, rounds=9):
    for c in calls: c(); c()
    t = [[] for _ in calls]
    for _ in range(rounds):
        for i, c in enumerate(calls):
            junk.fill_(0); a, b = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            a.record(); c(); b.record(); torch.cuda.synchronize(); t[i].append(a.elapsed_time(b) * 1e3)
    return [sorted(x)[rounds // 2] for x in t]
print(torch.cuda.get_device_name())
for n, c, h, k, s in ((64, 96, 112, 3, 2), (64, 144, 56, 5, 2), (64, 480, 14, 5, 1), (64, 1152, 7, 3, 1), (64, 144, 56, 3, 1)):
    x, w, g, y, dy = make(n, c, h, k, s, torch.bfloat16)
    X, W, DY = x.movedim(-1, 1), w[:, None].contiguous(memory_format=torch.channels_last), dy.movedim(-1, 1)
    conv = lambda: F.conv2d(X, W, None, s, k // 2, 1, c)
    cb = lambda m: aten.convolution_backward(DY, X, W, None, [s, s], [k // 2] * 2, [1, 1], False, [0, 0], c, m)
    z = F.conv2d(X.double(), W.double(), None, s, k // 2, 1, c)
    e = (y.movedim(-1, 1).double() - z).norm() / z.norm(); e0 = (conv().double() - z).norm() / z.norm()
    G = torch.autograd.grad(F.conv2d(*(l := [X.double().requires_grad_(), W.double().requires_grad_()]), None, s, k // 2, 1, c), l, DY.double())
    got = ops.depthwise_conv_backward(dy, x, w, *g, True, True); err = lambda a, b: float((a.double() - b).norm() / b.norm())
    eager = cb([True, True, False]); v = torch.rand(c, device="cuda") + .5
    t = us([conv, lambda: ops.depthwise_conv(x, w, *[None] * 6, *g, 0.0, 0), lambda: ops.depthwise_conv(x, w, None, v, v, v, v, None, *g, 1e-5, 4),
            lambda: cb([True, False, False]), lambda: ops.depthwise_conv_backward(dy, x, w, *g, True, False),
            lambda: cb([False, True, False]), lambda: ops.depthwise_conv_backward(dy, x, w, *g, False, True), lambda: x.clone(), lambda: y.clone()])
    print(f"C{c} H{h} k{k}s{s}: fwd {t[0]:.1f} -> {t[1]:.1f} (+norm silu {t[2]:.1f}); dx {t[3]:.1f} -> {t[4]:.1f}; dw {t[5]:.1f} -> {t[6]:.1f}; copy x {t[7]:.1f} y {t[8]:.1f};"
          f" err/eager's y {e/e0:.2f} dx {err(got[0].movedim(-1,1),G[0])/err(eager[0],G[0]):.2f} dw {err(got[1][:,None],G[1])/err(eager[1],G[1]):.2f}", flush=True)

for n, h, o, k in ((64, 224, 64, 7), (64, 224, 32, 3)) if hasattr(ops, 'first_conv') else ():
    x = torch.randn(n, h, h, 3, device="cuda").bfloat16(); w = (torch.randn(o, k, k, 3, device="cuda") / (9 * k)).bfloat16(); X, W = x.movedim(-1, 1), w.movedim(-1, 1)
    v = torch.rand(o, device="cuda") + .5; g = (2, 2, k // 2, k // 2); y = ops.first_conv(x, w, *[None] * 5, *g, 0.0, 0)
    z = F.conv2d(X[:4].double(), W.double(), None, 2, k // 2); conv = lambda: F.conv2d(X, W, None, 2, k // 2)
    e = (y[:4].movedim(-1, 1).double() - z).norm() / z.norm(); e0 = (conv()[:4].double() - z).norm() / z.norm()
    t = us([conv, lambda: ops.first_conv(x, w, *[None] * 5, *g, 0.0, 0), lambda: ops.first_conv(x, w, None, v, v, v, v, *g, 1e-5, 1), lambda: y.clone()])
    if hasattr(ops, "first_conv_weight"):
        dy = torch.randn_like(y); DY = dy.movedim(-1, 1); cb = lambda m: aten.convolution_backward(DY, X, W, None, [2, 2], [k // 2] * 2, [1, 1], False, [0, 0], 1, m)
        G = torch.autograd.grad(F.conv2d(X.double(), (l := W.double().requires_grad_()), None, 2, k // 2), l, DY.double())[0]; err = lambda a: float((a.double() - G).norm() / G.norm())
        q = us([lambda: cb([True, False, False]), lambda: cb([False, True, False]), lambda: ops.first_conv_weight(dy, x, w, *g)], 5)
        print(f"  torch's dx {q[0]:.1f}; dw {q[1]:.1f} -> {q[2]:.1f}; err/eager's {err(ops.first_conv_weight(dy, x, w, *g).movedim(-1, 1)) / err(cb([False, True, False])[1]):.2f}")
    print(f"first {k}x{k} to {o}: torch {t[0]:.1f} -> {t[1]:.1f} (+norm relu {t[2]:.1f}); copy y {t[3]:.1f}; err/eager's {float(e / e0):.2f}", flush=True)
