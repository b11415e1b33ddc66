"""Parts of a small 1x1 layer's training step, ours and torch's, us in cold L2: products and norms."""
import sys, torch
from fusedops._timing import timing
dev = torch.device("cuda"); pace = timing.Pace(2000.0, 10.0, 1e4)
ops = torch.ops.fusedops; aten = torch.ops.aten
tag = sys.argv[1]; dts = {"bf16": torch.bfloat16, "fp16": torch.float16}
dt = dts[sys.argv[2]]; only = sys.argv[3] if len(sys.argv) > 3 else "all"
seen = [(64, 1024, 14, 256), (64, 2048, 7, 512), (64, 512, 7, 2048), (64, 480, 14, 80), (64, 80, 14, 480), (64, 1152, 7, 192), (64, 320, 7, 1280), (64, 256, 14, 1024), (64, 512, 28, 128), (32, 256, 14, 1024), (32, 2048, 7, 512), (64, 64, 56, 64), (16, 256, 14, 256), (64, 112, 14, 672)]
for n, c, side, o in seen:
    m = n * side * side
    f = lambda *s: torch.randn(*s, device=dev)
    def make():
        return f(m, c).to(dt), (f(o, c) * c ** -.5).to(dt), f(m, o).to(dt), f(o), f(o), f(o), f(o).abs() + .5, f(m, o).to(dt), f(m, o).to(dt)
    sets = [make() for _ in range(min(timing.num_sets((m * c + o * c + 4 * m * o) * 2, dev), 6))]
    im = lambda t: t.view(n, side, side, -1).permute(0, 3, 1, 2)
    calls = {}
    if only in ("all", "mm"):
        calls |= {"fwd": lambda x, w, *r: ops.linear(x, w, None, 0, False), "fwd_t": lambda x, w, *r: torch.mm(x, w.t()),
        "dx": lambda x, w, dz, *r: ops.linear_backward(dz, x, w, None, 0, True, False, False, False, False), "dx_t": lambda x, w, dz, *r: torch.mm(dz, w),
        "dw": lambda x, w, dz, *r: ops.linear_backward(dz, x, w, None, 0, False, True, False, False, False), "dw_t": lambda x, w, dz, *r: torch.mm(dz.t(), x),
        "both": lambda x, w, dz, *r: ops.linear_backward(dz, x, w, None, 0, True, True, False, False, False)}
    if only in ("all", "bn"):
        calls |= {"bn": lambda x, w, z, g, b, mean, var, dy, r: ops.batch_norm_train_(z, None, g, b, None, None, mean, var, .1, 1e-5, 1),
        "bnr": lambda x, w, z, g, b, mean, var, dy, r: ops.batch_norm_train_(z, None, g, b, r, None, mean, var, .1, 1e-5, 1),
        "bn_t": lambda x, w, z, g, b, mean, var, dy, r: torch.relu_(torch.batch_norm(im(z), g, b, mean, var, True, .1, 1e-5, True)),
        "bb": lambda x, w, z, g, b, mean, var, dy, r: ops.batch_norm_train_backward(dy, z, mean, var, g, b, None, 1e-5, 1, False),
        "bbr": lambda x, w, z, g, b, mean, var, dy, r: ops.batch_norm_train_backward(dy, z, mean, var, g, b, r, 1e-5, 1, True),
        "bbs": lambda x, w, z, g, b, mean, var, dy, r: ops.batch_norm_train_backward(dy, z, mean, var, g, b, None, 1e-5, 3, False)}
    with torch.no_grad():
        prep = {k: timing.prepare(g, sets, dev, pace) for k, g in calls.items()}
        got = timing.interleave(prep, 5, dev, 10.0)
    print(tag, sys.argv[2], n, c, side, o, " ".join(f"{k}:{got[k].us:.2f}" for k in calls), flush=True)
    del sets, prep
