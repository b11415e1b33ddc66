"""1x1 convolutions in evaluation: what runs, our pointwise kernel with the norm inside, fold + product, product alone, cuDNN."""
import torch, fusedops
from fusedops._timing import timing
from fusedops.bench.suites.conv import layers as L, cudnn_peer
dev = torch.device("cuda"); pace = timing.Pace(2000.0, 10.0, 1e4)
ops = torch.ops.fusedops
import sys
NEW = sys.argv[1] == "new"
seen = [(96, 56, 24, 0), (2048, 7, 512, 0), (512, 28, 128, 0), (480, 14, 80, 1), (512, 7, 2048, 1), (80, 14, 480, 0), (1024, 14, 256, 0), (320, 7, 1280, 0), (256, 14, 1024, 1), (672, 14, 112, 1), (1152, 7, 192, 1), (512, 14, 512, 0), (1024, 14, 2048, 0)]
for n in (64, 8, 1):
  for c, side, o, res in seen:
    m = n * side * side
    def make():
        f = lambda *s: torch.randn(*s, device=dev)
        x = f(m, c).bfloat16(); w = (f(o, c) * c ** -.5).bfloat16()
        return x, w, f(o), f(o).abs() + .5, f(o), f(o), f(m, o).bfloat16()
    sets = [make() for _ in range(min(timing.num_sets((m * c + o * c + m * o * (1 + res)) * 2, dev), 6))]
    im = lambda t: t.view(n, side, side, -1).permute(0, 3, 1, 2)
    def ours(x, w, mean, var, g, b, r): return fusedops.conv_bn_act(im(x), w.view(o, c, 1, 1), None, mean, var, g, b, activation="relu", residual=im(r) if res else None)
    def point(x, w, mean, var, g, b, r): return ops.pointwise_conv(x, w, None, mean, var, g, b, r if res else None, 1e-5, 1)
    def fold(x, w, mean, var, g, b, r):
        w2, s = ops.batch_norm_fold(w, None, mean, var, g, b, 1e-5); return ops.linear(x, w2, s, 1, False)
    def alone(x, w, mean, var, g, b, r): return ops.linear(x, w, b.bfloat16() if False else None, 1, False)
    calls = {"ours": ours}
    def point(x, w, mean, var, g, b, r): return torch.ops.fusedops_tuning.pointwise_conv_by_own_kernel(x, w, None, mean, var, g, b, r if res else None, 1e-5, 1)
    try:
        if not NEW: raise AttributeError
        def norm(x, w, mean, var, g, b, r): return torch.ops.fusedops_tuning.pointwise_conv_by_product(x, w, None, mean, var, g, b, r if res else None, 1e-5, 1)
        calls["norm"] = norm
    except AttributeError: pass
    try:
        if not NEW: raise ValueError
        layer = L.Layer(n, c, side, o, 1, residual=bool(res), folded=False)
        def ins(x, w, mean, var, g, b, r): return (im(x), w.view(o, c, 1, 1), mean, var, g, b) + ((im(r),) if res else ()) + (g.view(1, o, 1, 1), b.view(1, o, 1, 1))
        import cudnn
        graph = cudnn_peer._Graph(cudnn, layer, ins(*sets[0]))
        def cud(*t): return graph(ins(*t))
        cud(*sets[0]); calls["cudnn"] = cud
    except Exception as e: print("no cudnn", type(e).__name__, str(e)[:100]) if NEW else None
    with torch.no_grad():
        prep = {k: timing.prepare(f, sets, dev, pace) for k, f in calls.items()}
        got = timing.interleave(prep, 5, dev, 10.0)
    print(n, c, side, o, "res" if res else "", " ".join(f"{k}:{got[k].us:.2f}" for k in calls), fusedops.explain_conv_bn_act((n, c, side, side), (o, c, 1, 1), residual=bool(res)).path, flush=True)
    del sets, prep
