"""The kernels that take most of a step: prof_top.py MODEL [VARIANT,...] (inductor,compile_whole), for the suite's models on a GPU."""
import sys, collections, torch
from fusedops.bench.suites.models.suite import MODELS
from fusedops.bench.suites.models.contenders import make
from fusedops.bench.suites.models.profile import _own_times, kind
from torch.profiler import profile, ProfilerActivity
name = sys.argv[1]; variants = (sys.argv[2] if len(sys.argv) > 2 else "inductor,compile_whole").split(",")
spec = [m for m in MODELS if m.name == name][0]
loaded = spec.load(False, torch.bfloat16, torch.device("cuda"))
for v in variants:
    torch.manual_seed(0)
    call = make(v, loaded, "step")
    for _ in range(4): call(*loaded.data)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call(*loaded.data); torch.cuda.synchronize()
    us, n = collections.Counter(), collections.Counter()
    for k, t in _own_times(seen, True): us[k] += t; n[k] += 1
    print(f"== {name} {v} {sum(us.values()):.0f} us, {sum(n.values())} kernels")
    for k, t in us.most_common(40): print(f"{t:8.1f} {n[k]:4d} {kind(k):9s} {k[:140]}")
