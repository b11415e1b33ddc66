# Small products for compute-sanitizer: forward (kept and not, looped and not), many tiles a CTA, backward; argument: the tool.
import os, sys
os.environ.setdefault("FUSEDOPS_CACHE_DIR", "/tmp/epicache")
exec(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "epi.py")).read().removesuffix("main()\n"))
# A main loop of pingpong warpgroups without clusters, for racecheck alone: its LTO-IR lies beside this file.
BY["0"] = L.Config(0, 128, 128, 1, 1, 222208, 1.0, 0)
configs = ["13"]
R.multiprocessors = lambda d: 2
for c, name, q in itertools.product(configs, ("relu_res", "gate_row"), (False,)):
    if not fits(name, c): continue
    f, p, names, kinds, act = program(name)
    x, w, v = make(300, 264, 136, torch.bfloat16, kinds, names)
    p, (y, acc) = primed(name, c, q, True, (x, w, v)); primed(name, c, q, False, (x, w, v))
    if not q: p.run_backward(torch.randn_like(y), acc, v, ["acc", *names])
torch.cuda.synchronize(); print("ran", configs)
