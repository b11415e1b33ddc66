"""Forms of the norm in cuDNN's graph, by layer: us, cold L2, replayed from CUDA graphs; peer: scale and shift formed before."""
import torch, torch.nn.functional as F, fusedops
from fusedops.ops import conv as C, conv_graph as G
from fusedops.ops.conv_problem import conv_problem
ops = torch.ops.fusedops; torch.backends.cudnn.benchmark = True
junk = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
def us(calls, rounds=9):
    graphs = {}
    for k, c in calls.items():
        try:
            s = torch.cuda.Stream()
            with torch.cuda.stream(s):
                for _ in range(3): r = c()
            torch.cuda.synchronize()
            if r is None: continue
            graphs[k] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[k]): c()
        except Exception as e: print(k, repr(e)[:80]); graphs.pop(k, None)
    t = {k: [] for k in graphs}
    for _ in range(rounds):
        for k, g in graphs.items():
            junk.fill_(0); a, b = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            a.record(); g.replay(); b.record(); torch.cuda.synchronize(); t[k].append(a.elapsed_time(b) * 1e3)
    return {k: sorted(x)[rounds // 2] for k, x in t.items()}
L = ((64, 512, 28, 128, 1, 0), (64, 1024, 14, 256, 1, 0), (64, 2048, 7, 512, 1, 0), (64, 96, 56, 24, 1, 0), (64, 512, 7, 2048, 1, 1), (64, 256, 14, 1024, 1, 1), (64, 128, 28, 512, 1, 1),
     (8, 512, 32, 512, 3, 0), (8, 256, 64, 256, 3, 0), (64, 256, 14, 256, 3, 0), (64, 128, 28, 128, 3, 0), (64, 64, 56, 64, 3, 0), (64, 512, 7, 512, 3, 0))
last = dict(memory_format=torch.channels_last)
for n, c, h, o, k, add in L:
    x = torch.randn(n, c, h, h, device="cuda").bfloat16().to(**last); w = (torch.randn(o, c, k, k, device="cuda") / (c * k * k) ** .5).bfloat16().to(**last)
    m, v, g, b = (torch.rand(o, device="cuda") + .5 for _ in range(4)); res = torch.randn(n, o, h, h, device="cuda").bfloat16().to(**last) if add else None
    p = conv_problem("x", x, w, 1, k // 2, 1, 1); relu = fusedops._core.activation.CODES["relu"]
    call = C.Fused(x, w, None, C.Norm(m, v, g, b), res, p, relu, 1e-5)
    scale, shift = g * (v + 1e-5).rsqrt(), b - m * g * (v + 1e-5).rsqrt()
    inside = G.Behind(None, m, v, g, b, 1e-5)
    def formed():
        s, _ = ops.batch_norm_fold(g[:, None], None, None, v, None, None, 1e-5)
        return call.graph(w, inside._replace(var=None, scale=s.flatten(), eps=0.0))
    def fold():
        f, s = call.folded(); return call.graph(f, G.Behind(s))
    def gemm():
        f, s = ops.batch_norm_fold(w.flatten(1), None, m, v, g, b, 1e-5); return ops.linear(x.movedim(1, -1), f, s, relu, False)
    calls = {"peer": lambda: call.graph(w, G.Behind(scale=scale, shift=shift)), "inside": lambda: call.graph(w, inside), "formed": formed, "fold": fold}
    if k == 1 and not add: calls["gemm"] = gemm
    with torch.no_grad(): t = us(calls)
    print(f"N{n} {c}->{o} {k}x{k} {h}{' add' if add else ''}: " + " ".join(f"{a} {z:.1f}" for a, z in t.items()), flush=True)
