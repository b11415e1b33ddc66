"""us of batch norm's calls in training over ResNet-50's layers: TAG"""
import sys, torch, fusedops
from fusedops._timing import timing
dev = torch.device("cuda"); tag = sys.argv[1]; pace = timing.Pace(2000.0, 10.0, 1e4)
ops = torch.ops.fusedops
import inspect
new = "moments" in str(ops.batch_norm_train_.default._schema)
for m, c in [(802816, 64), (802816, 256), (200704, 128), (200704, 512), (50176, 256), (50176, 1024), (12544, 512), (12544, 2048), (12544, 80), (3136, 1152)]:
    f = lambda *s: torch.randn(*s, device=dev)
    sets = []
    for _ in range(min(timing.num_sets(m * c * 8, dev), 4)):
        x, r, dy = (f(m, c).bfloat16() for _ in range(3)); g, b = f(c), f(c)
        sets.append((x, r, dy, g, b))
    def train(x, r, dy, g, b, res=True):
        a = (x, None) if new else (x,)
        return ops.batch_norm_train_(*a, g, b, r if res else None, None, None, None, .1, 1e-5, 1)
    outs = {t[0].data_ptr(): train(*t) for t in sets}
    def back(x, r, dy, g, b):
        y, mean, var = outs[x.data_ptr()]
        return ops.batch_norm_train_backward(dy, x, mean, var, g, b, y, 1e-5, 1, True)
    def back0(x, r, dy, g, b):
        y, mean, var = outs[x.data_ptr()]
        return ops.batch_norm_train_backward(dy, x, mean, var, g, b, None, 1e-5, 1, False)
    w = {t[0].data_ptr(): (f(m, 64).bfloat16(), f(c, 64).bfloat16()) for t in sets}
    def conv(x, r, dy, g, b):
        a, k = w[x.data_ptr()]
        z = ops.linear(a, k, None, 0, False)
        return train(z, r, dy, g, b)
    calls = {"train": train, "train0": lambda *t: train(*t, res=False), "back": back, "back0": back0, "conv": conv}
    if new:
        def moments(x, r, dy, g, b):
            a, k = w[x.data_ptr()]
            z, mo = ops.linear_moments(a, k)
            return ops.batch_norm_train_(z, mo, g, b, r, None, None, None, .1, 1e-5, 1)
        calls["moments"] = moments
        calls["product"] = lambda x, *t: ops.linear(*w[x.data_ptr()], None, 0, False)
        calls["product_m"] = lambda x, *t: ops.linear_moments(*w[x.data_ptr()])
    prep = {k: timing.prepare(fn, sets, dev, pace) for k, fn in calls.items()}
    got = timing.interleave(prep, 5, dev, 10.0)
    print(tag, m, c, " ".join(f"{k}:{got[k].us:.1f}" for k in calls), flush=True)
    del sets, prep, outs, w
