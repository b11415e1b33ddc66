"""Forward products of few features by many: TAG, us each and correctness against float64."""
import sys, torch, fusedops
from fusedops._timing import timing
dev = torch.device("cuda"); tag = sys.argv[1]
pace = timing.Pace(800.0, 20.0, 2e4)
SH = [(175169,393,6),(188096,189,4),(1425009,64,8),(57476,1572,64),(5449,13097,49),(69595,1621,73),(22200,3366,24),(117187,101,60),(14744,161,16),(25888,331,18),
 (1569321,64,20),(100000,64,3),(1000000,64,3),(1000000,128,3),(500000,32,6),(400000,96,9),(300000,48,16),(200000,256,32),(65536,1024,8),(65536,1024,64),(40000,777,40),(65536,512,16),(8192,4096,16),(8192,4096,64),(4096,11008,16),(262144,64,64),(131072,100,64),(60000,999,1),(16384,8192,32),(4100,2048,64),(5000,401,12),(300000,17,5),(300000,23,9),(200000,33,33),(100000,45,12),(50000,129,64),(30000,257,48),(10000,500,20),(5000,3001,50),(8192,1000,30),(1000000,19,3),(262144,65,64),(4096,333,7),(20000,1365,16),(131072,72,40),(131072,200,24),(500000,16,16),(700001,40,3),(60000,2000,4),(40000,1601,31),(9000,700,64)]
for dt in (torch.bfloat16,):
    for m, n, k in SH:
        for act in (("none","gelu") if k in (6,8,24,64) else ("relu",)):
            ld = (m*k + n*k + m*n)*2
            ns = timing.num_sets(ld, dev)
            sets = [(torch.randn(m,k,device=dev,dtype=dt), torch.randn(n,k,device=dev,dtype=dt), torch.randn(n,device=dev,dtype=dt)) for _ in range(min(ns,8))]
            f = lambda x,w,b: fusedops.linear(x,w,b,act)
            t = timing.interleave({"ours": timing.prepare(f, sets, dev, pace)}, 5, dev, 20.0)["ours"].us
            x,w,b = sets[0]
            y = f(x,w,b)
            z = torch.nn.functional.linear(x.float(), w.float(), b.float())
            ref = {"none": lambda z: z, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[act](z)
            bad = int((~((y.float()-ref).abs() <= 0.01*ref.abs()+0.02)).sum())
            name = fusedops.explain(x,w,b,act).products[0].kernel
            print(f"{tag} {m}x{n}x{k}/{act} {t:.1f} us {ld/t*1e-6:.2f} TB/s bad {bad} {name}", flush=True)
            del sets, x, w, b, y, z, ref
