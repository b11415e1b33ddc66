"""Host us per call: our ops, their Functions and torch's, small tensors (arithmetic is nothing)."""
import gc, sys, time
import torch, torch.nn.functional as F
from torch import nn
import fusedops
from fusedops._autograd import mlp as M
gpu = torch.cuda.is_available(); dev = "cuda" if gpu else "cpu"
sync = torch.cuda.synchronize if gpu else lambda: None
torch.set_num_threads(1); gc.disable()
dt = torch.bfloat16 if gpu else torch.float32
def T(*s): return torch.randn(*s, device=dev, dtype=dt)
def best(f, n=200, reps=12):
    for _ in range(30): f()
    m = 1e9
    for _ in range(reps):
        sync(); t = time.perf_counter()
        for _ in range(n): f()
        m = min(m, (time.perf_counter() - t) / n)
    sync(); return m * 1e6
D, H, R = 8, 8, 1
x, y = T(1, R, D), T(1, R, D); W, b = T(D, D), T(D); Wg, Wu, Wd, b1, b2 = T(H, D), T(H, D), T(D, H), T(H), T(D)
q, k, cos, sin = T(1, 4, R, 16), T(1, 4, R, 16), T(R, 16), T(R, 16)
O, A = torch.ops.fusedops, torch.ops.aten
with torch.no_grad():
    s1 = M._mlp_forward(x, Wg, b1, Wd, b2, None, 1, True, False)[1]; z1 = s1.clone()
    s2 = M._gated_mlp_forward(x, Wg, Wu, None, None, Wd, None, None, 3, True, False)[1]; z2 = s2.clone()
    n1 = O.rms_norm.default(x, None, b, 1, 1e-5, False, True); n2 = O.layer_norm.default(x, None, b, b, 1, 1e-5, False, True)
    X = x[0]
    for name, f in {
        "aten.mm": lambda: A.mm.default(X, W), "aten.addmm": lambda: A.addmm.default(b, X, W), "F.linear": lambda: F.linear(x, W, b),
        "linear": lambda: O.linear.default(x, W, b, 0, False), "linear gelu": lambda: O.linear.default(x, W, b, 1, False), "linear no bias": lambda: O.linear.default(x, W, None, 0, False),
        "linear_backward": lambda: O.linear_backward.default(y, x, W, None, 0, True, True, True, False, False),
        "linear_backward no bias": lambda: O.linear_backward.default(y, x, W, None, 0, True, True, False, False, False),
        "mlp_forward": lambda: M._mlp_forward(x, Wg, b1, Wd, b2, None, 1, True, False),
        "mlp_backward_": lambda: M._mlp_backward_in_place(y, s1, Wd, None, False, 1, True, True, True, True, False, False),
        "its linear_backward": lambda: M._linear_backward(z1, x, Wg, None, 0, True, True, False, False, False),
        "gated_mlp_forward": lambda: M._gated_mlp_forward(x, Wg, Wu, None, None, Wd, None, None, 3, True, False),
        "gated_mlp_backward_": lambda: M._gated_mlp_backward_in_place(y, s2, Wd, None, False, 3, False, False, True, False, False, False),
        "gated_input_backward": lambda: M._gated_input_backward(z2, x, Wg, Wu, True, True, True, False, False),
        "F.rms_norm": lambda: F.rms_norm(x, (D,), b, 1e-5), "F.layer_norm": lambda: F.layer_norm(x, (D,), b, b),
        "rms_norm": lambda: O.rms_norm.default(x, None, b, 1, 1e-5, False, True), "rms_norm_backward": lambda: O.rms_norm_backward.default(y, None, x, b, n1[2], 1, True, True),
        "layer_norm": lambda: O.layer_norm.default(x, None, b, b, 1, 1e-5, False, True), "layer_norm_backward": lambda: O.layer_norm_backward.default(y, None, x, b, n2[2], n2[3], 1, True, True, True),
        "rope": lambda: O.rope.default(q, k, cos, sin, 1, 16, False, False), "aten.gelu": lambda: A.gelu.default(x), "aten.add": lambda: A.add.Tensor(x, y),
    }.items(): print(f"{name}: {best(f):.1f}", end="; ", flush=True)
print()
P = lambda t: nn.Parameter(t.clone())
xr = x.clone().requires_grad_(); Wp, bp, gp, up, dp, b1p, b2p, np_, qr = P(W), P(b), P(Wg), P(Wu), P(Wd), P(b1), P(b2), P(b), q.clone().requires_grad_()
def both(f):
    r = f(); r = r if isinstance(r, tuple) else (r,); g = tuple(torch.ones_like(t) for t in r)
    ps = [xr, Wp, bp, gp, up, dp, b1p, b2p, np_, qr]
    def run():
        z = f(); torch.autograd.backward(z if isinstance(z, tuple) else (z,), g)
        for p in ps: p.grad = None
    return run
rot = lambda t: torch.cat((-t[..., 8:], t[..., :8]), -1)
for name, (a, o) in {
    "linear": (lambda: F.linear(xr, Wp, bp), lambda: fusedops.linear(xr, Wp, bp)),
    "mlp": (lambda: F.linear(F.gelu(F.linear(xr, gp, b1p)), dp, b2p), lambda: fusedops.mlp(xr, gp, b1p, dp, b2p, "gelu")),
    "gated": (lambda: F.linear(F.silu(F.linear(xr, gp)) * F.linear(xr, up), dp), lambda: fusedops.gated_mlp(xr, gp, up, dp)),
    "rms": (lambda: F.rms_norm(xr, (D,), np_, 1e-5), lambda: fusedops.rms_norm(xr, (D,), np_, 1e-5)),
    "ln": (lambda: F.layer_norm(xr, (D,), np_, bp), lambda: fusedops.layer_norm(xr, (D,), np_, bp)),
    "rope": (lambda: qr * cos + rot(qr) * sin, lambda: fusedops.rope(qr, None, cos, sin)),
}.items(): print(f"{name}: fwd {best(a):.1f} ours {best(o):.1f}, both {best(both(a), 100):.1f} ours {best(both(o), 100):.1f}; ", end="", flush=True)
print()
