"""PART OF: compiles torch's layers of the suite conv into Inductor's cache; nothing is timed."""
import sys, torch
from fusedops.bench.suites.base import Selection
from fusedops.bench.suites.conv.suite import SUITE
torch.backends.cudnn.benchmark = False
part, parts, wanted = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
dev = torch.device("cuda"); s = SUITE(); jobs = []
for w in wanted:
    pass_, dt = w.split(":")
    jobs += [(c, pass_, dt) for c in s.cases(Selection(pass_)) if c["kind"] == "layer" and not c["layer"].folded]
for case, pass_, dt in jobs[part::parts]:
    try:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[dt]
        data = s.make_inputs(case, dtype, pass_, dev)
        with torch.enable_grad(): s.peer("compile", case, pass_, dev)(*data)
        torch.cuda.synchronize(); del data; torch.cuda.empty_cache(); torch._dynamo.reset()
    except Exception as e: print(case.name, pass_, dt, type(e).__name__, str(e)[:100])
print("warm", part, len(jobs[part::parts]))
