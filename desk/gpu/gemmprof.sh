# gemmprof: about 30 s. Kernels of the worst random products, ours and eager's.
python3 - <<'P' 2>&1 | grep -v Warn | cut -c1-150
import torch, fusedops, torch.nn.functional as F
from torch.profiler import profile, ProfilerActivity
torch.backends.cuda.matmul.allow_tf32 = False
B, H, S = torch.bfloat16, torch.float16, torch.float32
def r(*s, dt): return torch.randn(*s, device="cuda").to(dt)
def show(name, f):
    f(); f(); torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(3): f()
        torch.cuda.synchronize()
    e = sorted(((x.self_device_time_total / 3, x.count // 3, x.key) for x in p.key_averages() if x.self_device_time_total), reverse=True)
    print(f"--- {name}: {sum(x[0] for x in e):.0f} us"); [print(f"  {t:8.1f} {c} {k[:110]}") for t, c, k in e[:6]]
def mlp(T, d, h, dt, act="gelu"):
    x, w1, b1, w2, b2 = r(T, d, dt=dt), r(h, d, dt=dt), r(h, dt=dt), r(d, h, dt=dt), r(d, dt=dt)
    dy = r(T, d, dt=dt); L = [t.requires_grad_() for t in (x, w1, b1, w2, b2)]
    a = {"gelu": F.gelu, "relu2": lambda z: F.relu(z) ** 2}[act]
    show(f"ours mlp {T} {d} {h} {dt}", lambda: torch.autograd.grad(fusedops.mlp(x, w1, b1, w2, b2, act), L, dy))
    show(f"eager", lambda: torch.autograd.grad(F.linear(a(F.linear(x, w1, b1)), w2, b2), L, dy))
def lin(m, n, k, dt, act, step, tw=False, sx=0):
    x = r(m, k + sx, dt=dt)[:, :k]; w = r(k, n, dt=dt).t() if tw else r(n, k, dt=dt); b = r(n, dt=dt); dy = r(m, n, dt=dt)
    a = {"silu": F.silu, "relu": F.relu, "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"), "none": lambda z: z}[act]
    L = [t.requires_grad_() for t in (x, w, b)]
    if step:
        show(f"ours linear {m} {n} {k} {dt} {act} step", lambda: torch.autograd.grad(fusedops.linear(x, w, b, act), L, dy)); show("eager", lambda: torch.autograd.grad(a(F.linear(x, w, b)), L, dy))
    else:
        with torch.no_grad(): show(f"ours linear {m} {n} {k} {dt} {act}", lambda: fusedops.linear(x, w, b, act)); show("eager", lambda: a(F.linear(x, w, b)))
mlp(33859, 64, 1859, S); mlp(30633, 92, 2339, B)
lin(82951, 631, 69, B, "silu", True); lin(44338, 64, 2415, S, "gelu_tanh", False); lin(190253, 8, 375, B, "gelu_tanh", False); lin(1223840, 1, 64, S, "relu", True, sx=5)
lin(1, 11101, 7928, B, "gelu_tanh", False, tw=True); lin(15226, 98, 6444, B, "gelu_tanh", False)
P
