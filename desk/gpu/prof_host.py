"""TURNS MODEL CONTENDERS...: where the host's time of a step goes; inductor- is without fast_attention."""
import collections, contextlib, os, pathlib, re, sys, time
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
import fusedops, fusedops.bench.suites.models.contenders as C
from fusedops.bench.suites.base import Selection
from fusedops.bench.suites.models.suite import SUITE
from fusedops.bench.turns import Turns
turns, m = Turns(pathlib.Path(sys.argv[1])), sys.argv[2]
dev = torch.device("cuda"); sync = torch.cuda.synchronize
s = SUITE(); c = next(c for c in s.cases(Selection("step")) if c.name.startswith(m + "/"))
fast = fusedops.fast_attention
with s.context("bf16"):
    calls = {}
    C._options = lambda n: fusedops.inductor() if n == "inductor" else {}
    with turns.beside_others():
        data = s.make_inputs(c, torch.bfloat16, "step", dev)
        for w in sys.argv[3:]:
            fusedops.fast_attention = contextlib.nullcontext if w.endswith("-") else fast
            calls[w] = C.make(w.rstrip("-"), s._model(), "step")
            for _ in range(4): calls[w](*data)
            sync()
    fusedops.fast_attention = fast
    with turns.alone():
        if os.environ.get("CTX"):
            for n in ("fast_attention",):
                f = getattr(fusedops, n)
                def g():
                    with f(): pass
                for _ in range(100): g()
                t = time.perf_counter()
                for _ in range(1000): g()
                print(n, "us", (time.perf_counter() - t) * 1e3)
        walls = collections.defaultdict(list)
        for r in range(7):
            for w, f in calls.items():
                sync(); t = time.perf_counter()
                for _ in range(6): f(*data)
                sync(); walls[w].append((time.perf_counter() - t) / 6 * 1e3)
        for w, f in calls.items():
            host, one = [], []
            for _ in range(10):
                t = time.perf_counter(); f(*data); host.append((time.perf_counter() - t) * 1e3); sync(); one.append((time.perf_counter() - t) * 1e3)
            with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p: f(*data); sync()
            busy, end, n = 0.0, 0.0, 0
            for e in sorted((e for e in p.events() if e.device_type == DeviceType.CUDA), key=lambda e: e.time_range.start):
                busy += max(e.time_range.end - max(e.time_range.start, end), 0); end = max(end, e.time_range.end); n += 1
            med = lambda x: sorted(x)[len(x) // 2]
            print(f"{m} {w}: wall {med(walls[w]):.3f} (min {min(walls[w]):.3f}) one {med(one):.3f} host {med(host):.3f} min {min(host):.3f} busy {busy/1e3:.3f} ms {n} kernels")
            rows = sorted(p.key_averages(), key=lambda e: -e.self_cpu_time_total)
            for e in rows[:16]: print(f"    {e.self_cpu_time_total:9.1f} self {e.cpu_time_total:9.1f} all {e.count:5d}  {e.key[:90]}")
            print("  ours:")
            for e in sorted(p.key_averages(), key=lambda e: -e.cpu_time_total):
                if e.key.startswith("fusedops") or "cudnn_attention" in e.key or "flash_attention" in e.key: print(f"    {e.cpu_time_total/e.count:7.1f} us a call {e.count:5d} {e.key[:90]}")
            sys.stdout.flush()
