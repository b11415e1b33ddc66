"""Depthwise convolutions in evaluation, us: TAG; ours and F.conv2d alone (channels last) as the anchor of the run."""
import sys, torch, fusedops
import torch.nn.functional as F
from fusedops._timing import timing
dev = torch.device("cuda"); tag = sys.argv[1]; pace = timing.Pace(2000.0, 10.0, 1e4)
ops = torch.ops.fusedops
CASES = [(64, 96, 112, 3, 2), (64, 32, 112, 3, 1), (64, 144, 56, 3, 1), (64, 144, 56, 5, 2), (64, 240, 28, 5, 1), (64, 240, 28, 3, 2), (64, 480, 14, 3, 1), (64, 480, 14, 5, 1), (64, 672, 14, 5, 1), (64, 672, 14, 5, 2), (64, 1152, 7, 5, 1), (64, 1152, 7, 3, 1), (8, 96, 112, 3, 2), (8, 144, 56, 3, 1), (8, 480, 14, 5, 1), (1, 96, 112, 3, 2), (1, 480, 14, 5, 1), (1, 144, 56, 3, 1), (256, 64, 56, 3, 1), (256, 128, 56, 3, 2), (32, 16, 224, 3, 1), (16, 768, 28, 3, 1), (16, 200, 33, 3, 2), (16, 72, 61, 5, 2), (2, 8, 512, 3, 1), (2, 8, 512, 5, 2)]
if tag != "old": CASES += [(64, 128, 56, 7, 1), (64, 256, 28, 7, 1), (64, 512, 14, 7, 1), (64, 1024, 7, 7, 1), (128, 96, 56, 7, 1), (8, 256, 28, 7, 1), (1, 512, 14, 7, 1), (16, 80, 37, 7, 1)]
for dt in (torch.bfloat16, torch.float16)[:int(sys.argv[2])]:
  for n, c, side, k, s in CASES:
    pad = k // 2
    def make():
        f = lambda *z: torch.randn(*z, device=dev)
        return f(n, side, side, c).to(dt), f(c, k, k).to(dt), f(c), f(c).abs() + .5, f(c), f(c)
    sets = [make() for _ in range(min(timing.num_sets(n * side * side * c * 4, dev), 6))]
    calls = {"ours": lambda x, w, m, v, g, b: ops.depthwise_conv(x, w, None, m, v, g, b, None, s, s, pad, pad, 1e-5, 4),
             "raw": lambda x, w, m, v, g, b: ops.depthwise_conv(x, w, *[None] * 6, s, s, pad, pad, 0.0, 0)}
    if dt is torch.bfloat16 and k == 7 or dt is torch.float16: calls["torch"] = lambda x, w, m, v, g, b: F.conv2d(x.permute(0, 3, 1, 2), w.unsqueeze(1), None, s, pad, 1, c)
    o = (side + 2 * pad - k) // s + 1
    dys = {q[0].data_ptr(): torch.randn(n, o, o, c, device=dev).to(dt) for q in sets}
    calls["dx"] = lambda x, w, *r: ops.depthwise_conv_backward(dys[x.data_ptr()], x, w, s, s, pad, pad, True, False)[0]
    calls["dw"] = lambda x, w, *r: ops.depthwise_conv_backward(dys[x.data_ptr()], x, w, s, s, pad, pad, False, True)[1]
    prep = {q: timing.prepare(f, sets, dev, pace) for q, f in calls.items()}
    got = timing.interleave(prep, 3, dev, 10.0)
    floor = (n * side * side * c * 2 * (1 + 1 / s / s)) / 4.8e6 if "H200" in torch.cuda.get_device_name() else (n * side * side * c * 2 * (1 + 1 / s / s)) / 3.35e6
    print(tag, str(dt)[6:], n, c, side, k, s, f"floor:{floor:.1f}", " ".join(f"{q}:{got[q].us:.1f}" for q in calls), flush=True)
    del sets, prep, dys
