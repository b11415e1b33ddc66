"""us of every tile of the parts kernel over random products: lines for a fit. TAG SECONDS SEED"""
import sys, time, random, torch, fusedops
from fusedops._timing import timing
dev = torch.device("cuda"); tag, limit, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
pace = timing.Pace(400.0, 10.0, 1e4)
run = torch.ops.fusedops_tuning.gemm_unaligned
rnd = random.Random(seed); t0 = time.time()
def lu(a, b): return int(round(a * (b / a) ** rnd.random()))
while time.time() - t0 < limit:
    kind = rnd.choice("ffdw")
    m, n, k = lu(8, 300000), lu(8, 5000), lu(16, 5000)
    if kind == "w": m, n, k = lu(8, 4000), lu(8, 4000), lu(64, 300000)
    if rnd.random() < .5: m, n, k = (max(x // 8 * 8, 8) for x in (m, n, k))
    if m * n * k > 6e10 or m * n > 1e8 or m * k > 1e8 or m * n * k < 3e5: continue
    def make():
        if kind == "f": return torch.randn(m, k, device=dev), torch.randn(n, k, device=dev).t()
        if kind == "d": return torch.randn(m, k, device=dev), torch.randn(k, n, device=dev)
        return torch.randn(k, m, device=dev).t(), torch.randn(k, n, device=dev)
    sets = [make() for _ in range(min(timing.num_sets((m*k+n*k+m*n)*4, dev), 6))]
    calls = {"cublas": lambda a, b: a @ b}
    for s in (1, 2, 3, 5, 8, 16, 22, 44, 88, 128):
        if s > 1 and (k < 64 * s or -(-m // 128) * -(-n // 96) * s > 600): continue
        for t in range(4):
            try: run(*sets[0], None, 0, t, s, 0)
            except RuntimeError: continue
            calls[f"t{t}s{s}"] = lambda a, b, t=t, s=s: run(a, b, None, 0, t, s, 0)
    a, b = sets[0]; z = a @ b
    prep = {name: timing.prepare(f, sets, dev, pace) for name, f in calls.items()}
    got = timing.interleave(prep, 3, dev, 10.0)
    print(tag, kind, m, n, k, " ".join(f"{x}:{got[x].us:.2f}" for x in calls), flush=True)
    del sets, a, b, z, prep
