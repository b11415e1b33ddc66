"""Few rows: every skinny kernel, the plan of before (old module's, if run with it), and torch, us in cold L2.

sk8.py TAG: all shapes; prints best of clusters of 1, 2 and of 4, 8, the plan that is chosen, torch.
"""
import sys, torch, fusedops
from fusedops._timing import timing
from fusedops._tuning.names import FAMILIES
dev = torch.device("cuda"); pace = timing.Pace(1500.0, 8.0, 1e4)
tag = sys.argv[1]
ops = torch.ops.fusedops; wc = torch.ops.fusedops_tuning.gemm_with_config
configs = [c for c in fusedops._C.gemm_configs() if c["family"] == "skinny"]
SHAPES = [(8,768,13400),(64,72,14080),(64,64,15656),(7,384,32576),(8,1296,28288),(8,1040,13640),(64,2752,32696),
 (1,1024,4096),(16,512,2048),(64,1024,8192),(128,768,3072),(128,1024,4096),(8,2048,8192),(32,2048,4096),(8,256,1024),
 (8,4096,14336),(64,128,512),(100,2048,16384),(1,2048,8192),(1,4096,4096),(16,1280,5120),(33,1536,8960),(128,2048,8192),
 (4,896,4864),(8,640,10240),(1,128,128),(16,320,1280),(64,512,512),(9,1664,1664),(128,320,20480),(32,4096,4096),(32,5120,13824),(64,4096,11008),(128,4096,4096),(128,1280,5120),(48,768,3072),(24,1024,1024),(96,640,2560),(128,512,8192),(16,11008,4096),(80,3072,3072)]
for m, n, k in SHAPES:
    dt = torch.bfloat16
    f = lambda *s: torch.randn(*s, device=dev)
    sets = [(f(m, k).to(dt), (f(n, k) * k ** -.5).to(dt), f(n).to(dt)) for _ in range(min(timing.num_sets((m * k + n * k + m * n) * 2, dev), 40))]
    x, w, b = sets[0]
    exact = torch.relu(x.double() @ w.double().t() + b.double())
    calls = {"ours": lambda x, w, b: ops.linear(x, w, b, 1, False), "torch": lambda x, w, b: torch._addmm_activation(b, x, w.t())}
    for c in configs:
        g = lambda x, w, b, i=c["index"]: wc(x, w.t(), b, 1, FAMILIES["skinny"], i, 1, 8, 0)
        try:
            y = g(x, w, b)
            err = ((y.double() - exact).norm() / exact.norm()).item()
            same = torch.equal(y, g(x, w, b))
            if err > 5e-3 or not same: print("WRONG", m, n, k, c["name"], err, same, flush=True)
            calls[c["name"]] = g
        except RuntimeError as e: pass
    with torch.no_grad():
        prep = {kk: timing.prepare(g, sets, dev, pace) for kk, g in calls.items()}
        got = timing.interleave(prep, 3, dev, 10.0)
    us = {kk: got[kk].us for kk in calls}
    plan = fusedops.explain(x, w, b, "relu")
    name = str(plan).split("kernel")[1].split("\n")[0].strip(); exp = str(plan).split("time")[1].split("us")[0].strip()
    best = min((v, c) for c, v in us.items() if c.startswith("skinny"))
    print(f"{tag} {m}x{n}x{k} ours {us['ours']:.2f} ({name}, {exp}) torch {us['torch']:.2f} best {best[0]:.2f} {best[1][7:]} ratio {us['torch'] / us['ours']:.2f} | " + " ".join(f"{c[7:].replace(' ','_')}:{us[c]:.2f}" for c in us if c.startswith("skinny")), flush=True)
    del sets, prep
