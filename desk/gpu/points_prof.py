import collections, re, sys, torch
from torch.profiler import profile, ProfilerActivity
from torch.autograd import DeviceType
from fusedops.bench.suites.base import Selection
from fusedops.bench.suites.pointnet.suite import SUITE
out = open(sys.argv[1], "w")
dev = torch.device("cuda")
s = SUITE()
def short(k):
    return re.sub(r"at::native::|fusedops::|void |\(anonymous namespace\)::|cutlass::|gemm::|unsigned |cuda::", "", k)[:110]
CASES = (("ssg_cls/B32_N1024", "infer"), ("ssg_cls/B32_N1024", "step"), ("msg_seg/B16_N2048", "infer"), ("msg_seg/B16_N2048", "step"),
         ("sa/B32_N1024_M512_K32_C0_64-64-128", "fwd"), ("sa/B16_N16384_M4096_K32_C6_32-32-64", "step"), ("sa/B32_N512_M128_K64_C128_128-128-256", "fwd"), ("sa/B32_N512_M128_K64_C256_256-256-512", "step"), ("sa/B32_N512_M128_K64_C128_128-128-256", "step"), ("sa/B32_N1024_M512_K32_C0_64-64-128", "step"))
for name, pas in CASES:
    try:
        c = [c for c in s.cases(Selection(pas)) if c.name == name][0]
        with s.context("bf16"):
            data = s.make_inputs(c, torch.bfloat16, pas, dev)
            call = s.ours(c, pas)
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(3): call(*data)
            torch.cuda.synchronize()
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g): call(*data)
        for _ in range(3): g.replay()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(); a.record()
        for _ in range(5): g.replay()
        b.record(); torch.cuda.synchronize(); wall = a.elapsed_time(b) / 5 * 1e3
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            g.replay(); torch.cuda.synchronize()
        es = sorted((e for e in p.events() if e.device_type == DeviceType.CUDA), key=lambda e: e.time_range.start)
        us, n = collections.Counter(), collections.Counter()
        for e in es:
            us[e.name] += e.time_range.end - e.time_range.start; n[e.name] += 1
        t0 = es[0].time_range.start
        head = f"=== {name} {pas}: graph {wall:.0f} us, busy {sum(us.values()):.0f} us, {len(es)} kernels, span {es[-1].time_range.end-t0:.0f}"
        print(head); print(head, file=out)
        for k, v in us.most_common(45): print(f"{v:9.1f} {n[k]:4d} {short(k)}", file=out)
        print("--- in order: start, us, name", file=out)
        for e in es: print(f"{e.time_range.start-t0:9.1f} {e.time_range.end-e.time_range.start:7.1f} {short(e.name)}", file=out)
        out.flush()
        del data, g
    except Exception as e:
        print("ERR", name, pas, repr(e)[:300])
