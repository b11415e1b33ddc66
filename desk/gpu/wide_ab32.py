"""Forward products of few features by many: TAG, us each and correctness against float64."""
import sys, torch, fusedops
from fusedops._timing import timing
dev = torch.device("cuda"); tag = sys.argv[1]
pace = timing.Pace(800.0, 20.0, 2e4)
SH = [(589609,193,13),(272263,491,1),(31168,131,61),(200001,65,3),(1000000,64,3),(300000,17,5),(100000,45,12),(811448,210,30),(882649,106,4),(115308,89,1),(6198,64,32),(500000,64,6),(31168,131,7),(300000,128,16),(60000,256,32),(60000,257,33),(200000,33,20),(65536,1000,8),(1000000,19,3),(40000,301,64),(115308,489,3),(9000,399,24),(131072,40,32),(131072,100,50),(262144,32,32),(4096,777,9)]
for dt in (torch.float32,):
    for m, n, k in SH:
        for act in (("none","gelu") if k in (6,8,13,30) else ("relu",)):
            ld = (m*k + n*k + m*n)*4
            ns = timing.num_sets(ld, dev)
            sets = [(torch.randn(m,k,device=dev,dtype=dt), torch.randn(n,k,device=dev,dtype=dt), torch.randn(n,device=dev,dtype=dt)) for _ in range(min(ns,8))]
            f = lambda x,w,b: fusedops.linear(x,w,b,act)
            t = timing.interleave({"ours": timing.prepare(f, sets, dev, pace)}, 5, dev, 20.0)["ours"].us
            x,w,b = sets[0]
            y = f(x,w,b)
            z = torch.nn.functional.linear(x.double(), w.double(), b.double())
            ref = {"none": lambda z: z, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[act](z)
            bad = int((~((y.float()-ref).abs() <= 3e-6*ref.abs()+3e-6*k**0.5)).sum())
            name = fusedops.explain(x,w,b,act).products[0].kernel
            print(f"{tag} {m}x{n}x{k}/{act} {t:.1f} us {ld/t*1e-6:.2f} TB/s bad {bad} {name}", flush=True)
            del sets, x, w, b, y, z, ref
