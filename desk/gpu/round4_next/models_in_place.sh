# Expected seconds: 90. One GPU. The graph pass with and without its writing over saved tensors: gradients against fp64 eager, busy time, peak memory.
cat > /tmp/mip.py <<'P'
import torch, fusedops, torch.nn as nn, torch.nn.functional as F
class Gated(nn.Module):
    def __init__(s, d, h):
        super().__init__(); s.n = nn.RMSNorm(d); s.g, s.u, s.d = nn.Linear(d, h, bias=False), nn.Linear(d, h, bias=False), nn.Linear(h, d, bias=False)
    def forward(s, x): y = s.n(x); return x + s.d(F.silu(s.g(y)) * s.u(y))
class Mlp(nn.Module):
    def __init__(s, d, h): super().__init__(); s.n = nn.LayerNorm(d); s.a, s.b = nn.Linear(d, h), nn.Linear(h, d)
    def forward(s, x): return x + s.b(F.gelu(s.a(s.n(x))))
def step(f, m, x):
    m.zero_grad(set_to_none=True); f(x).float().square().mean().mul(1e3).backward()
for name, cls, M, d, h in (("titan", Gated, 8192, 2048, 5632), ("llama", Gated, 4096, 4096, 14336), ("whisper", Mlp, 12000, 1024, 4096)):
    torch.manual_seed(0); m = nn.Sequential(*(cls(d, h) for _ in range(3))).cuda().bfloat16(); x = torch.randn(M, d, device="cuda", dtype=torch.bfloat16)
    w = nn.Sequential(*(cls(d, h) for _ in range(3))).cuda().double(); w.load_state_dict(m.state_dict()); step(w, w, x.double())
    want = [p.grad.clone() for p in w.parameters()]; del w; torch.cuda.empty_cache(); fs = {}
    for k in ("compile", "before", "now"):
        o = {} if k == "compile" else fusedops.inductor(force=True)["options"]
        if k == "before": o = {a: b for a, b in o.items() if a != "post_grad_custom_post_pass"}
        torch._dynamo.reset(); fs[k] = torch.compile(m, dynamic=False, options=o)
        for _ in range(3): step(fs[k], m, x)
        e = max(float((p.grad.double() - q).abs().max() / q.abs().max()) for p, q in zip(m.parameters(), want))
        m.zero_grad(set_to_none=True); torch.cuda.synchronize(); b = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats(); step(fs[k], m, x); peak = torch.cuda.max_memory_allocated() - b
        ts = []
        for _ in range(15):
            s, t = (torch.cuda.Event(enable_timing=True) for _ in "ab"); s.record(); step(fs[k], m, x); t.record(); torch.cuda.synchronize(); ts.append(s.elapsed_time(t))
        print(f"{name:8} {k:8} error {e:.1e} step {sorted(ts)[7]:.3f} ms peak {peak/2**20:.0f} MiB", flush=True)
P
python3 /tmp/mip.py
