"""Kernels of a training step of layers: us each, ours and eager."""
import collections, torch
from fusedops.bench.suites.conv.layers import LAYERS, by_torch, make_inputs
from fusedops.bench.suites.conv.suite import as_pass, ours_layer
torch.backends.cudnn.benchmark = True
WANT = ("N64_C480_H14_O80", "N64_C2048_H7", "N64_C1024_H14", "N64_C256_H56_O512", "N64_C128_H28_O512", "N64_C64_H56_O256", "N64_C256_H14_O1024", "N64_C512_H28_O128", "N8_C256_H64", "N64_C512_H7_O512")
def short(n):
    n = n.replace("fusedops::", "").replace("void ", "").replace("cutlass", "ct").replace("at::native::", "")
    return n.split("<")[0].split("(")[0][:34]
for layer in (l for l in LAYERS if l.name.startswith(WANT)):
    inputs = make_inputs(layer, torch.bfloat16, "step", torch.device("cuda"))
    for who, call in (("ours", as_pass(ours_layer(layer, True), "step")), ("compile", as_pass(torch.compile(by_torch(layer, True, in_place=False), dynamic=False), "step"))):
        for _ in range(4): call(*inputs)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
            for _ in range(5): call(*inputs)
            torch.cuda.synchronize()
        found = collections.OrderedDict()
        for e in sorted((e for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA), key=lambda e: e.time_range.start):
            found[short(e.name)] = found.get(short(e.name), 0) + e.device_time / 5
        print(f"{layer.name} {who} {sum(found.values()):.0f}: " + ", ".join(f"{k} {v:.1f}" for k, v in found.items() if v > .8), flush=True)
