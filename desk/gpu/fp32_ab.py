"""fp32 products of random sizes, small and large, forward, dgrad and wgrad by matmul: TAG SECONDS SEED; us of cuBLAS and ours."""
import sys, time, random, torch, fusedops
from fusedops._timing import timing
dev = torch.device("cuda"); tag, limit, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
pace = timing.Pace(400.0, 10.0, 1e4)
rnd = random.Random(seed); t0 = time.time()
def lu(a, b): return int(round(a * (b / a) ** rnd.random()))
BIG = [("f",8192,4096,4096),("d",8192,4096,4096),("w",4096,4096,8192),("f",4096,4096,1024),("d",4096,1024,4096),("w",4096,1024,4096),("f",16384,1024,1024),("w",1024,1024,16384),("f",2048,2048,2048),("d",4097,4099,4093)]
i = 0
while time.time() - t0 < limit:
    i += 1
    if i <= len(BIG): kind, m, n, k = BIG[i - 1]
    else:
        kind = rnd.choice("fdw")
        m, n, k = lu(16, 20000), lu(8, 4000), lu(16, 8000)
        if kind == "w": m, n, k = lu(8, 4000), lu(8, 4000), lu(64, 20000)
        if rnd.random() < .5: m, n, k = (max(x // 8 * 8, 8) for x in (m, n, k))
        if m * n * k > 2e10: continue
    def make():
        if kind == "f": return torch.randn(m, k, device=dev), torch.randn(n, k, device=dev).t()
        if kind == "d": return torch.randn(m, k, device=dev), torch.randn(k, n, device=dev)
        return torch.randn(k, m, device=dev).t(), torch.randn(k, n, device=dev)
    sets = [make() for _ in range(min(timing.num_sets((m*k+n*k+m*n)*4, dev), 6))]
    calls = {"cublas": torch.mm, "ours": fusedops.matmul}
    prep = {name: timing.prepare(f, sets, dev, pace) for name, f in calls.items()}
    got = timing.interleave(prep, 3, dev, 10.0)
    a, b = sets[0]
    try: x = fusedops.explain(a, b.t()).products[0]; what = f"{x.kernel} {x.expected_us:.1f}".replace(" ", "_")
    except Exception as e: what = type(e).__name__
    print(tag, kind, m, n, k, " ".join(f"{x}:{got[x].us:.2f}" for x in calls), what, flush=True)
    del sets, a, b, prep
