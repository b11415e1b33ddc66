"""Kernels of layers of the suite conv, us each in a warm cache: DTYPE PASS NAME..."""
import sys, torch
from fusedops.bench.suites.base import Selection
from fusedops.bench.suites.conv.suite import SUITE
torch.backends.cudnn.benchmark = True
dev = torch.device("cuda"); dt = {"bf16": torch.bfloat16, "fp16": torch.float16}[sys.argv[1]]; pass_ = sys.argv[2]
s = SUITE()
for case in s.cases(Selection(pass_)):
    if not any(w in case.name for w in sys.argv[3:]): continue
    data = s.make_inputs(case, dt, pass_, dev)
    for who in ("ours", "compile"):
        f = s.ours(case, pass_) if who == "ours" else s.peer(who, case, pass_, dev)
        for _ in range(5): f(*data)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
            for _ in range(5): f(*data)
            torch.cuda.synchronize()
        e = sorted((e for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA), key=lambda e: e.time_range.start)
        n = len(e) // 5
        print(case.name, who, n, "kernels", f"{sum(x.device_time for x in e) / 5:.1f} us")
        for i in range(n):
            print(f"    {sorted(e[i + n * r].device_time for r in range(5))[2]:7.1f} {e[i].name.replace('fusedops::','').replace('void ','')[:110]}")
