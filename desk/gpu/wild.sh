#!/usr/bin/env bash
# wild.sh: reductions' GPU tests, then a sample of `bench wild`; under 100 s. Run in the repository root.
# WILD_COUNT cases a family (default 20), WILD_SEED (default 7). CSVs, kernels and picture go to $OUT/wild.
OUT=${OUT:-/tmp/out}; mkdir -p "$OUT/wild"
PY=${PY:-python3}
[ -x .venv/bin/python ] && PY=.venv/bin/python
export PYTHONPATH=python
timeout 60 $PY -m pytest tests/reduce -m gpu -x -q -n 8 2>&1 | tail -15
$PY - <<'PYEOF' | tee "$OUT/wild/slow_classes.txt"
# The classes of issue 30: ours against eager, quick rounds.
import torch, fusedops
from fusedops._timing import timing
dev = torch.device("cuda")
pace = timing.Pace(800.0, 20.0, 1e4)
cases = [("sum", s, d) for s, d in [((3, 10_000_001), 0), ((8, 4_000_003), 0), ((16, 8, 500_001), 1),
         ((64, 5, 100_003), 1), ((20, 2_000_001), 0), ((4_000_001, 5), 0), ((8_000_000, 7), 0),
         ((6_000_001, 9), 0), ((20_000, 128, 17), 1), ((200_000, 16, 9), 1), ((500, 4096, 31), 1),
         ((2_000_000, 9, 3), 1), ((100_000, 64, 7), 1)]]
cases += [("argmax", s, d) for _, s, d in cases] + [("amax", s, d) for _, s, d in cases[:4]]
for dtype in (torch.bfloat16, torch.float32):
    for kind, shape, dim in cases:
        n = timing.num_sets(torch.Size(shape).numel() * dtype.itemsize, dev)
        sets = [(torch.randn(shape, device=dev, dtype=dtype),) for _ in range(n)]
        f, g = getattr(fusedops, kind), getattr(torch, kind)
        calls = {"ours": lambda x: f(x, dim), "eager": lambda x: g(x, dim)}
        t = timing.interleave({k: timing.prepare(c, sets, dev, pace) for k, c in calls.items()}, 5, dev, 20.0)
        gbps = torch.Size(shape).numel() * dtype.itemsize / t["ours"].us * 1e-3
        print(f"{t['eager'].us / t['ours'].us:6.2f} {kind} {shape} dim{dim} {str(dtype)[6:]}: {t['ours'].us:.1f} us, {gbps:.0f} GB/s", flush=True)
        del sets
PYEOF
timeout 75 $PY -m fusedops bench wild --count ${WILD_COUNT:-20} --seed ${WILD_SEED:-7} --budget 45 --out "$OUT/wild/" --plot > "$OUT/wild/log.txt" 2>&1
grep -c FAILED "$OUT/wild/log.txt"; grep FAILED "$OUT/wild/log.txt" | cut -c1-240 | sort -u | head -20
sed -n '/^wild: over/,$p' "$OUT/wild/log.txt" | cut -c1-230 | head -110
