"""fp32 products over parts: TAG [quick]; us of every tile, cuBLAS and ours as chosen; errors against float64."""
import sys, torch, fusedops
from fusedops._timing import timing
dev = torch.device("cuda"); tag = sys.argv[1]
torch.backends.cuda.matmul.allow_tf32 = False
pace = timing.Pace(800.0, 20.0, 2e4)
TILES = int(sys.argv[2])
P = [("f",401367,64,264),("f",17015,32,1944),("f",7842,265,278),("f",522929,155,152),("f",23456,108,3144),("f",167952,738,72),("f",31168,131,61),
("f",19915,2967,154),("f",15424,576,608),("f",278775,256,192),("f",3000,1000,500),("f",163,14488,1438),("f",4096,512,512),("f",4096,4096,1024),("f",8192,4096,4096),("f",4096,16384,4096),("f",2048,2048,2048),("f",456,223,316),("f",64,512,4096),
("d",167952,72,738),("d",31168,61,131),("d",19915,154,2967),("d",15424,608,576),("d",278775,192,256),
("w",738,72,167952),("w",193,13,589609),("w",131,61,31168),("w",2967,154,19915),("w",576,608,15424),("w",112,1099,576),("w",256,192,278775)]
mm = torch.ops.fusedops_tuning.gemm_auto if hasattr(torch.ops.fusedops_tuning, "gemm_auto") else torch.mm
run = torch.ops.fusedops_tuning.gemm_unaligned
for kind, m, n, k in P:
    def make():
        if kind == "f": return torch.randn(m, k, device=dev), torch.randn(n, k, device=dev).t()
        if kind == "d": return torch.randn(m, k, device=dev), torch.randn(k, n, device=dev)
        return torch.randn(k, m, device=dev).t(), torch.randn(k, n, device=dev)
    ld = (m*k + n*k + m*n)*4
    sets = [make() for _ in range(min(timing.num_sets(ld, dev), 6))]
    calls = {"cublas": lambda a, b: a @ b}
    if kind == "f": calls["ours"] = lambda a, b: fusedops.linear(a, b.t())
    if kind != "f": calls["ours"] = lambda a, b: mm(a, b)
    slices = (8, 32) if kind == "w" and k > 8000 else (1, 4) if k > 1200 else (1,)
    if kind == "f" and k % 8: slices = (1,)
    for t in range(TILES):
        for s in slices: calls[f"t{t}s{s}"] = lambda a, b, t=t, s=s: run(a, b, None, 0, t, s, 0)
    a, b = sets[0]
    z = a.double() @ b.double(); scale = (a.double().abs() @ b.double().abs())
    err = {}
    for name, f in calls.items():
        y = f(a, b); err[name] = float(((y.double() - z).abs() / scale).max()); rms = float(((y.double()-z)/scale).pow(2).mean().sqrt()); err[name] = (err[name], rms)
        assert torch.equal(y, f(a, b)), name
    del z, scale, y
    prep = {name: timing.prepare(f, sets, dev, pace) for name, f in calls.items()}
    got = timing.interleave(prep, 5, dev, 20.0)
    gf = 2*m*n*k*1e-6
    print(f"{tag} {kind} {m}x{n}x{k} {ld*1e-6/4.3:.0f}us-mem | " + " ".join(f"{x} {got[x].us:.1f} ({gf/got[x].us:.0f}TF e{err[x][0]:.1e}/{err[x][1]:.1e})" for x in calls), flush=True)
    del sets, a, b, prep
