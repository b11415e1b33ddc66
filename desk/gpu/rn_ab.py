
"""Steps of torchvision's convolution models under torch.compile, with and without the graph pass of convolutions, in turns.

rn_ab.py MODEL BATCH DTYPE [graphs]: ms a step (forward, loss, backward), channels_last; the pass's report; errors.
"""
import sys, copy, torch, torchvision, fusedops, time
name, batch, dt = sys.argv[1], int(sys.argv[2]), {"bf16": torch.bfloat16, "fp16": torch.float16}[sys.argv[3]]
graphs = len(sys.argv) > 4
torch.manual_seed(0)
base = getattr(torchvision.models, name)(num_classes=1000).cuda().to(dt).to(memory_format=torch.channels_last).train()
for m in base.modules():
    if isinstance(m, torch.nn.Dropout): m.p = 0.
    if "StochasticDepth" in type(m).__name__: m.p = 0.
x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=dt).contiguous(memory_format=torch.channels_last); t = torch.randint(1000, (batch,), device="cuda")
def loss(m, x): return torch.nn.functional.cross_entropy(m(x).float(), t)
runs = {}; mode = "reduce-overhead" if graphs else None
def step(f, m):
    def run():
        l = f(m, x); l.backward()
        for p in m.parameters(): p.grad = None
        return l
    return run
def own(n):
    import types
    return types.FunctionType(loss.__code__.replace(co_name="loss_" + n), globals(), "loss_" + n)
ours = fusedops.inductor(mode)
a = copy.deepcopy(base); runs["compile"] = step(torch.compile(own("c"), dynamic=False, **({"mode": mode} if mode else {})), a)
b = copy.deepcopy(base); runs["inductor"] = step(torch.compile(own("i"), dynamic=False, **ours), b)
if not graphs:
    c = copy.deepcopy(base); fusedops.fuse(c); runs["fuse"] = step(loss, c); runs["eager"] = step(loss, copy.deepcopy(base))
import pathlib; from fusedops.bench.turns import Turns
turns = Turns(pathlib.Path("/tmp/turns")); lock = turns.beside_others(); lock.__enter__()
for k, r in runs.items():
    t0 = time.time()
    for _ in range(4): l = r()
    torch.cuda.synchronize(); print(name, k, "warm", round(time.time() - t0, 1), "loss", l.item(), flush=True)
print({k: ours.report.kinds().count(k) for k in set(ours.report.kinds())}, flush=True)
torch.cuda.empty_cache(); lock.__exit__(None, None, None); lock = turns.alone(); lock.__enter__()
for r in runs.values(): r(), r()
ms = {k: [] for k in runs}
for _ in range(7):
    for k, r in runs.items():
        r(); s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        s.record()
        for _ in range(6): r()
        e.record(); torch.cuda.synchronize(); ms[k].append(s.elapsed_time(e) / 6)
mem = {}
for k, r in runs.items():
    torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats(); base_mb = torch.cuda.memory_allocated(); r(); torch.cuda.synchronize(); mem[k] = (torch.cuda.max_memory_allocated() - base_mb) / 1e6
med = {k: sorted(v)[3] for k, v in ms.items()}
print("RESULT", name, batch, sys.argv[3], "graphs" if graphs else "", " ".join(f"{k}:{v:.3f}ms/{mem[k]:.0f}MB" for k, v in med.items()), f"compile/inductor {med['compile'] / med['inductor']:.3f}", flush=True)
