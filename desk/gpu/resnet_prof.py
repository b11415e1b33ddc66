"""Kernels of a training step of ResNet-50: us each, ours and compile."""
import collections, torch
from fusedops.bench.suites.conv import nets
torch.backends.cudnn.benchmark = True
dev = torch.device("cuda")
model = nets.build(torch.bfloat16, dev)
inputs = nets.make_inputs(256, 224, torch.bfloat16, dev)
def short(n):
    n = n.replace("fusedops::", "").replace("void ", "").replace("cutlass", "ct").replace("at::native::", "")
    return n.split("<")[0].split("(")[0][:60]
for who in ("ours", "compile"):
    call = nets.net_call(model, who, "step")
    for _ in range(4): call(*inputs)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        for _ in range(3): call(*inputs)
        torch.cuda.synchronize()
    found, count = collections.Counter(), collections.Counter()
    seq = []
    for e in sorted((e for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA), key=lambda e: e.time_range.start):
        found[short(e.name)] += e.device_time / 3; count[short(e.name)] += 1
        seq.append((short(e.name), e.device_time))
    print(who, "total us", sum(found.values()))
    for k, v in found.most_common(40): print(f"   {v:9.1f} {count[k]/3:6.1f} {k}")
    print("seq", who)
    for n, t in seq[:len(seq)//3]: print(f"      {t:8.1f} {n}")
