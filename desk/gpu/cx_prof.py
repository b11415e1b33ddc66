"""VARIANT: kernels of a step of convnext_base by the graph pass; a: as it is, b: dweight of the graph's own tensors, c: without depthwise."""
import sys, collections, pathlib, torch, fusedops
from fusedops.bench.turns import Turns
turns = Turns(pathlib.Path("/tmp/turns_cx"))
import fusedops._inductor.depthwise as D
import fusedops._inductor.graph_pass as G
from fusedops._inductor.graph import aten
import fusedops.bench.suites.models.contenders as C
from fusedops.bench.suites.base import Selection
from fusedops.bench.suites.models.suite import SUITE
v = sys.argv[1]
if v == "c": G.replace_depthwise = lambda *a: None
if v == "b":
    import operator
    old = D._Written.backward
    def backward(self, dy):
        found, wanted = self.found, dict(self.found.gradients())
        call = self.call
        pairs = [p for p in old(self, dy) if p[0] is not wanted.get(1)]
        every = call(D.BACKWARD, (dy, found.x, found.weight, None, *found.numbers, [False, True, False]))
        return [*pairs, (wanted[1], call(operator.getitem, (every, 1)))]
    D._Written.backward = backward
s = SUITE(); c = next(c for c in s.cases(Selection("step")) if c.name.startswith("convnext_base/"))
dev = torch.device("cuda")
with s.context("bf16"):
    with turns.beside_others():
        data = s.make_inputs(c, torch.bfloat16, "step", dev)
        f = C.make("fuse" if v == "f" else "inductor", s._model(), "step")
        for _ in range(4): f(*data)
        torch.cuda.synchronize()
    with turns.alone(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        f(*data); torch.cuda.synchronize()
    t, n = collections.Counter(), collections.Counter()
    for e in p.events():
        if e.device_type == torch.autograd.DeviceType.CUDA: t[e.name[:110]] += e.device_time; n[e.name[:110]] += 1
    print("VARIANT", v, "busy", f"{sum(t.values()):.0f} us")
    for k, x in t.most_common(16): print(f"   {x:8.0f} {n[k]:4d} {k}")
