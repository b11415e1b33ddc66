"""TURNS MODEL CONTENDERS...: host and busy time of a step, and with TOP=n its kernels."""
import collections, os, pathlib, re, sys, time
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
import fusedops, fusedops.bench.suites.models.contenders as C
from fusedops.bench.suites.base import Selection
from fusedops.bench.suites.models.suite import SUITE
from fusedops.bench.turns import Turns

turns, m, top = Turns(pathlib.Path(sys.argv[1])), sys.argv[2], int(os.environ.get("TOP", 0))
gpu = torch.cuda.is_available()
dev = torch.device("cuda" if gpu else "cpu")
sync = torch.cuda.synchronize if gpu else lambda: None
s = SUITE()
c = next(c for c in s.cases(Selection("step")) if c.name.startswith(m + "/"))
with s.context("bf16"):
    calls, o = {}, fusedops.inductor()
    C._options = lambda n: o if n == "inductor" else {}
    with turns.beside_others():
        data = s.make_inputs(c, torch.bfloat16, "step", dev)
        for w in sys.argv[3:]:
            calls[w] = C.make(w, s._model(), "step")
            for _ in range(4): calls[w](*data)
            sync()
    if "inductor" in calls: print(m, "took", dict(collections.Counter(o.report.kinds())))
    if top and "inductor" in calls: print(str(o.report)[:9000])
    with turns.alone():
        for w, f in calls.items():
            for _ in range(3): f(*data)
            sync(); t = time.perf_counter()
            for _ in range(10): f(*data)
            sync(); wall = (time.perf_counter() - t) / 10
            host, one = [], []
            for _ in range(10):  # one step at a time: an empty queue never holds the host up
                t = time.perf_counter(); f(*data); host.append(time.perf_counter() - t)
                sync(); one.append(time.perf_counter() - t)
            if gpu: base = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats(); f(*data); sync(); mb = (torch.cuda.max_memory_allocated() - base) / 1e6
            else: mb = 0
            with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as p: f(*data); sync()
            us, n, end = collections.Counter(), collections.Counter(), 0.0
            kind = DeviceType.CUDA if gpu else DeviceType.CPU
            for e in sorted((e for e in p.events() if e.device_type == kind), key=lambda e: e.time_range.start):
                us[e.name] += max(e.time_range.end - max(e.time_range.start, end), 0)
                end = max(end, e.time_range.end); n[e.name] += 1
            ms = lambda x: f"{sorted(x)[len(x) // 2] * 1e3:6.2f}"
            print(f"{m:16} {w:13} wall {wall*1e3:6.2f} alone {ms(one)} host {ms(host)} (min {min(host)*1e3:.2f}) busy {sum(us.values())/1e3:6.2f} ms, {sum(n.values())} kernels, {mb:.0f} MB", flush=True)
            for k, v in us.most_common(top):
                print(f"{v:9.1f} {n[k]:4d} " + re.sub(r"at::native::|fusedops::|void |\(anonymous namespace\)::|cutlass::|gemm::|unsigned ", "", k)[:150])
