"""torch's depthwise 7x7 (and 3x3, 5x5) in bf16: us of forward, dx, dw; channels last and not, with and without cudnn.benchmark."""
import torch
from fusedops._timing import timing
dev = torch.device("cuda"); pace = timing.Pace(2000.0, 10.0, 1e4)
for n, c, side, k in [(64, 128, 56, 7), (64, 256, 28, 7), (64, 512, 14, 7), (64, 1024, 7, 7), (128, 96, 56, 7), (64, 64, 56, 3)]:
    for bench in (False, True):
        torch.backends.cudnn.benchmark = bench
        for fmt in (torch.channels_last, torch.contiguous_format):
            def make():
                x = torch.randn(n, c, side, side, device=dev).bfloat16().to(memory_format=fmt)
                return x, torch.randn_like(x), torch.randn(c, 1, k, k, device=dev).bfloat16(), torch.randn(c, device=dev).bfloat16()
            sets = [make() for _ in range(min(timing.num_sets(n * c * side * side * 4, dev), 6))]
            def back(dy, x, w, mask): return torch.ops.aten.convolution_backward(dy, x, w, [c], [1, 1], [k // 2] * 2, [1, 1], False, [0, 0], c, mask)
            calls = {"fwd": lambda x, dy, w, b: torch.nn.functional.conv2d(x, w, b, 1, k // 2, 1, c),
                     "dx": lambda x, dy, w, b: back(dy, x, w, [True, False, False])[0],
                     "dw": lambda x, dy, w, b: back(dy, x, w, [False, True, False])[1],
                     "db": lambda x, dy, w, b: dy.sum((0, 2, 3))}
            for f in calls.values(): f(*sets[0])
            prep = {q: timing.prepare(f, sets, dev, pace) for q, f in calls.items()}
            got = timing.interleave(prep, 3, dev, 10.0)
            print(n, c, side, k, "bench" if bench else "", str(fmt)[6:], f"floor:{n*c*side*side*4/4.8e6:.1f}", " ".join(f"{q}:{got[q].us:.1f}" for q in calls), flush=True)
            del sets, prep
