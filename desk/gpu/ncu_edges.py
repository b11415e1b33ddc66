import sys, torch
from fusedops.bench.suites.base import Selection
from fusedops.bench.suites.pointnet.suite import SUITE
dev = torch.device("cuda"); s = SUITE()
for name in ("sa/B32_N1024_M512_K32_C0_64-64-128", "sa/B16_N16384_M4096_K32_C6_32-32-64", "sa/B32_N512_M128_K64_C128_128-128-256"):
    c = [c for c in s.cases(Selection("step")) if c.name == name][0]
    with s.context("bf16"):
        data = s.make_inputs(c, torch.bfloat16, "step", dev)
        s.ours(c, "step")(*data)
    torch.cuda.synchronize()
