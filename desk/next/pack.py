"""Products of odd rows: ours, the packed path that main takes, torch; us, cold L2, interleaved."""
import os, torch, torch.nn.functional as F, fusedops
from fusedops import _C
torch.backends.cuda.matmul.allow_tf32 = False
W = torch.ops.fusedops_tuning.gemm_with_config.default
FAM, H = _C.enums()["family"], dict(capability=90, sm_count=132)
NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
flush = torch.empty(128 << 20, dtype=torch.int8, device="cuda")
def timed(fs, rounds=7):
    t = [[] for _ in fs]
    for f in fs: f(); f()
    for _ in range(rounds):
        for i, f in enumerate(fs):
            flush.zero_(); a, b = torch.cuda.Event(True), torch.cuda.Event(True)
            torch.cuda._sleep(60000); a.record(); f(); b.record(); torch.cuda.synchronize(); t[i].append(a.elapsed_time(b) * 1e3)
    return [sorted(x)[rounds // 2] for x in t]
B, H16, S = torch.bfloat16, torch.float16, torch.float32
CASES = [(1, 11101, 7928, B, 1, 0), (8, 8325, 9762, B, 0, 0), (3, 19392, 6129, H16, 0, 0), (64, 7219, 14420, H16, 0, 0), (56, 14903, 8640, B, 1, 0), (16, 1785, 1301, H16, 1, 0), (24, 935, 9607, B, 0, 0),
         (64, 512, 2551, B, 0, 0), (8, 221, 167, B, 0, 0), (148153, 6, 803, B, 0, 0), (83408, 10, 987, H16, 0, 0), (190253, 8, 375, B, 0, 1), (15226, 98, 6444, B, 0, 0), (82951, 631, 69, B, 0, 0), (82951, 69, 631, B, 1, 0), (260289, 199, 46, B, 0, 0), (14503, 223, 115, B, 0, 0),
         (18304, 454, 6871, H16, 0, 0), (57593, 576, 1985, H16, 1, 1), (4445, 64, 1038, H16, 0, 0), (2496, 704, 4967, H16, 0, 0), (44338, 64, 2415, S, 0, 0), (33859, 64, 1859, S, 0, 0), (33859, 1859, 64, S, 1, 0), (9216, 47, 11549, S, 1, 1), (3776, 1191, 3369, S, 0, 0)]
log = []
for m, n, k, dt, tw, tx in CASES:
    x = torch.randn(k, m, device="cuda").to(dt).t() if tx else torch.randn(m, k, device="cuda").to(dt)
    w = torch.randn(k, n, device="cuda").to(dt).t() if tw else torch.randn(n, k, device="cuda").to(dt)
    b = torch.randn(n, device="cuda").to(dt)
    o = dict(a=(*x.stride(), x.data_ptr() % 16), b=(w.stride(1), w.stride(0), w.data_ptr() % 16), dtype=NAMES[dt], epilogue="fused", activation=1, allow_tf32=False, **H)
    thin, un = _C.thin_gemm(m, n, k, **o), _C.unaligned_gemm(m, n, k, **o)
    p = _C.prepare_gemm(m, n, k, **o); c = _C.plan_gemm(p["problem"], **H)["chosen"]
    with torch.no_grad():
        ours, theirs = lambda: fusedops.linear(x, w, b, "relu"), lambda: torch.relu(F.linear(x, w, b))
        exact = torch.relu(x.double() @ w.double().t() + b.double()); y, z = ours(), theirs()
        err, ref = ((t.double() - exact).abs().max().item() for t in (y, z)); del exact
        # In main, fp32 operands are packed; so are 16-bit ones where this build's unaligned kernels are not asked.
        packed = (lambda: W(x, w.t(), b, 1, FAM.index(c["family"]), c["index"], c["splits"], c["swizzle"], 0)) if c and dt is not S else None
        t = timed([f for f in (ours, packed, theirs) if f])
    what = thin["name"] if thin["takes"] else f'{un["name"]}/{un["splits"]}' if un["takes"] else "packed" if p["pack_a"] or p["pack_b"] else "in place"
    model = thin["expected_us"] if thin["takes"] else un["expected_us"] if un["takes"] else (c or {}).get("expected_us", 0)
    bad = "" if err <= 2 * ref + 1e-6 else f" WRONG {err:.1e} torch's {ref:.1e}"
    print(f'{m}x{n}x{k} {NAMES[dt][:5]} {"T" * tx}{"t" * tw} {what}: {t[0]:.0f} us (model {model:.0f})' + (f", packed {t[1]:.0f}" if packed else "") + f", torch {t[-1]:.0f} ({t[-1] / t[0]:.2f}){bad}", flush=True)
    del x, w, y, z
