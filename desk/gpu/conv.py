"""bn: batch norm in training, new kernels against the passes; point: 1x1 layers in evaluation; prof: kernels of steps; small_*: each once, for the sanitizer."""
import sys, collections, torch, fusedops
ops = torch.ops.fusedops; mode = sys.argv[1]; torch.manual_seed(0); torch.backends.cudnn.benchmark = True
if mode == "small_pw":
    for dt in (torch.bfloat16, torch.float16):
        for m, k, n in ((300, 16, 24), (20000, 64, 128), (17000, 512, 128), (300, 264, 320), (100, 512, 2048)):
            x = torch.randn(m, k, device="cuda").to(dt); w = torch.randn(n, k, device="cuda").to(dt); v = torch.rand(n, device="cuda")
            for r in (None, torch.randn(m, n, device="cuda").to(dt)): ops.pointwise_conv(x, w, None, v, v, v, v, r, 1e-5, 4)
        for c, o in ((64, 72), (128, 64)):
            x = torch.randn(2, 19, 13, c, device="cuda").to(dt); w = torch.randn(o, 3, 3, c, device="cuda").to(dt); y = ops.first_conv(x, w, *[None] * 5, 1, 1, 1, 1, 0.0, 0)
        ops.first_conv_image(y, x, w, 1, 1, 1, 1)
    torch.cuda.synchronize(); print("ran"); sys.exit()
if mode == "small_bn":
    for dt in (torch.bfloat16, torch.float32):
        for m, c in ((5000, 64), (2100, 72), (520, 1064), (3136, 512), (12544, 1024)):
            x, dy = (torch.randn(m, c, device="cuda").to(dt) for _ in "ab"); v = torch.rand(c, device="cuda")
            for r in (None, dy):
                y, mean, var = ops.batch_norm_train_(x, v, v, r, None, v.clone(), v.clone(), .1, 1e-5, 1)
                ops.batch_norm_train_backward(dy, x, mean, var, v, v, None if r is None else y, 1e-5, 1, r is not None)
    torch.cuda.synchronize(); print("ran"); sys.exit()
junk = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
def us(make, calls, rounds=11):
    """Median of calls on what make() left in L2 (hot: as behind a convolution)."""
    for c in calls: make(); c(); c()
    t = [[] for _ in calls]
    for _ in range(rounds):
        for i, c in enumerate(calls):
            junk.fill_(0); make(); a, b = (torch.cuda.Event(enable_timing=True) for _ in "ab"); a.record(); c(); b.record(); torch.cuda.synchronize(); t[i].append(a.elapsed_time(b) * 1e3)
    return [sorted(x)[rounds // 2] for x in t]
if mode == "image":
    import torch.nn.functional as F
    print(torch.cuda.get_device_name(), "3x3 us: torch / ours / ours with norm and relu; gradient of x: torch / ours; errors over torch's")
    for n, h, c, o in ((64, 56, 64, 64), (8, 256, 64, 64), (8, 256, 128, 64), (3, 29, 64, 72)):
        x = torch.randn(n, h, h, c, device="cuda").bfloat16(); w = (torch.randn(o, 3, 3, c, device="cuda") / (9 * c) ** .5).bfloat16(); X, W = x.movedim(-1, 1), w.movedim(-1, 1); v = torch.rand(o, device="cuda") + .5
        conv = lambda: F.conv2d(X, W, None, 1, 1); own = lambda: ops.first_conv(x, w, *[None] * 5, 1, 1, 1, 1, 0.0, 0); full = lambda: ops.first_conv(x, w, None, v, v, v, v, 1, 1, 1, 1, 1e-5, 1)
        y = own(); dy = torch.randn_like(y); DY = dy.movedim(-1, 1); k = min(n, 2)
        cb = lambda m: torch.ops.aten.convolution_backward(DY, X, W, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, m); dx = lambda: ops.first_conv_image(dy, x, w, 1, 1, 1, 1)
        z = F.conv2d(X[:k].double(), W.double(), None, 1, 1); g = torch.nn.grad.conv2d_input(X[:k].shape, W.double(), DY[:k].double(), 1, 1); e = lambda a, b: float((a.movedim(-1, 1)[:k].double() - b).norm() / b.norm()); f = lambda a, b: float((a[:k].double() - b).norm() / b.norm())
        zn = F.relu((z - v.double().view(1, -1, 1, 1)) / (v.double().view(1, -1, 1, 1) + 1e-5).sqrt() * v.double().view(1, -1, 1, 1) + v.double().view(1, -1, 1, 1))
        whole = [torch.equal(y, own()), bool((y.movedim(-1, 1).float() - conv().float()).abs().max() < .1), bool((dx().movedim(-1, 1).float() - cb([True, False, False])[0].float()).abs().max() < .1)]
        t = us(lambda: x.copy_(x), [conv, own, full, lambda: cb([True, False, False]), dx], 9)
        print(f"{n}x{h} {c}->{o}: {t[0]:.1f} / {t[1]:.1f} / {t[2]:.1f}; {t[3]:.1f} / {t[4]:.1f}; y {e(y, z) / f(conv(), z):.2f} norm {e(full(), zn):.4f} dx {e(dx(), g) / f(cb([True, False, False])[0], g):.2f} {whole}", flush=True)
if mode == "bn":
    print(torch.cuda.get_device_name(), "us, x just written: forward one op / passes; backward one op / passes; 'res': with residual and ReLU")
    for m, c, res in ((3136, 512, 0), (12544, 256, 0), (12544, 1024, 1), (3136, 2048, 1), (12544, 480, 0), (12544, 80, 0), (3136, 1152, 0), (8192, 512, 0), (32768, 256, 0)):
        z, dy, r = (torch.randn(m, c, device="cuda").bfloat16() for _ in "abc"); v = torch.rand(c, device="cuda") + .5; x = torch.empty_like(z); r = r if res else None
        make = lambda: x.copy_(z); make(); rm, rv = v.clone(), v.clone()
        one = lambda: ops.batch_norm_train_(x, v, v, r, None, rm, rv, .1, 1e-5, 1)
        def passes():
            mean, var = ops.batch_norm_statistics_(x, None, rm, rv, .1); return ops.batch_norm_apply(x, mean, var, v, v, r, 1e-5, 1)
        y, mean, var = one(); s = y if res else None
        back = lambda: ops.batch_norm_train_backward(dy, x, mean, var, v, v, s, 1e-5, 1, bool(res))
        def back_passes():
            sums, dz = ops.batch_norm_sums(dy, x, mean, var, v, v, s, 1e-5, 1, bool(res))
            return ops.batch_norm_backward(dz if res else dy, x, mean, var, v, v, None, sums, None, 1e-5, 0 if res else 1, False)
        t = us(make, [one, passes, back, back_passes]); print(f"{m}x{c}{' res' if res else ''}: {t[0]:.1f} / {t[1]:.1f}; {t[2]:.1f} / {t[3]:.1f}", flush=True)
if mode == "point":
    from fusedops.bench.suites.conv.layers import LAYERS, by_torch, make_inputs
    from fusedops.bench.suites.conv.suite import as_pass, ours_layer
    from fusedops.bench.suites.conv.cudnn_peer import cudnn_layer
    from fusedops.ops import conv, conv_problem
    print(torch.cuda.get_device_name(), "us: our kernel / what ran before / cuDNN's graph / eager; copy of y (and residual)")
    def other(c):
        def call(*i):
            was = conv_problem._POINTWISE_CHANNELS; conv_problem._POINTWISE_CHANNELS = 0; conv._known_path.cache_clear()
            try: return c(*i)
            finally: conv_problem._POINTWISE_CHANNELS = was; conv._known_path.cache_clear()
        return call
    def graphed(c, sets):
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            for i in sets[:2]: c(*i)
        torch.cuda.synchronize(); g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g): keep = [c(*i) for i in sets]
        return g.replay, keep
    for l in LAYERS:
        if l.kernel != 1 or l.stride != 1 or l.groups != 1: continue
        first = make_inputs(l, torch.bfloat16, "infer", torch.device("cuda")); size = sum(t.numel() * t.element_size() for t in first); n = max(2, min(12, (160 << 20) // size))
        sets = [first] + [tuple(t.clone() if t.dim() == 4 else t for t in first) for _ in range(n - 1)]
        ours = as_pass(ours_layer(l, False), "infer"); t = []
        calls = [ours, other(ours), as_pass(by_torch(l, False), "infer")]
        try: cud = cudnn_layer(l, "infer", torch.device("cuda")); calls.insert(2, cud)
        except Exception as e: print("no cudnn", e)
        graphs = [graphed(c, sets) for c in calls]
        for r in range(7):
            for i, (g, _) in enumerate(graphs):
                g(); a, b = (torch.cuda.Event(enable_timing=True) for _ in "ab"); a.record(); g(); g(); b.record(); torch.cuda.synchronize(); t.append((i, a.elapsed_time(b) * 1e3 / 2 / n))
        med = [sorted(x for j, x in t if j == i)[3] for i in range(len(graphs))]
        e = ours(*first).double(); z = by_torch(l, False, in_place=False)(*[q.double() for q in first[:-2]]); eag = calls[-1](*first).double()
        print(f"{l.name}: " + " / ".join(f"{m:.1f}" for m in med) + f"; error/eager's {float((e - z).norm() / (eag - z).norm()):.2f}; worst {float((e - z).abs().max()):.3f}", flush=True); del sets, graphs, e, z, eag
if mode == "prof":
    from fusedops.bench.suites.conv.layers import LAYERS, by_torch, make_inputs
    from fusedops.bench.suites.conv.suite import as_pass, ours_layer
    def short(n):
        n = n.replace("fusedops::", "").replace("void ", "").replace("cutlass", "ct").replace("at::native::", "").replace("(anonymous namespace)::", ""); return n.split("<")[0].split("(")[0][:30]
    for l in (l for l in LAYERS if l.name.startswith(("N64_C2048_H7", "N64_C1024_H14", "N64_C480_H14_O80", "N64_C512_H7_O2048", "N8_C512_H32"))):
        inputs = make_inputs(l, torch.bfloat16, "step", torch.device("cuda"))
        for who, call in (("ours", as_pass(ours_layer(l, True), "step")), ("eager", as_pass(by_torch(l, True), "step"))):
            for _ in range(4): call(*inputs)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
                for _ in range(5): call(*inputs)
                torch.cuda.synchronize()
            found = collections.OrderedDict()
            for e in sorted((e for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA), key=lambda e: e.time_range.start): found[short(e.name)] = found.get(short(e.name), 0) + e.device_time / 5
            print(f"{l.name[4:]} {who} {sum(found.values()):.0f}: " + ", ".join(f"{k} {v:.1f}" for k, v in found.items() if v > .8), flush=True)
