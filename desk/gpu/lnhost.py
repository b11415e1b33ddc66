import torch, time, gc, torch.nn.functional as F, fusedops, cProfile, pstats
from torch import nn
torch.set_num_threads(1)
def best(f,n=300,reps=10):
    for _ in range(20): f()
    m=1e9
    gc.disable()
    for _ in range(reps):
        t=time.perf_counter()
        for _ in range(n): f()
        m=min(m,(time.perf_counter()-t)/n)
    return m*1e6
C=8; x=torch.randn(16,C,requires_grad=True); w=nn.Parameter(torch.ones(C)); b=nn.Parameter(torch.zeros(C)); g=torch.ones(16,C)
W=nn.Parameter(torch.randn(C,C))
def both(f):
    def run():
        y=f(); y.backward(g); x.grad=w.grad=b.grad=W.grad=None
    return run
for name,t,o in (('ln',lambda:F.layer_norm(x,(C,),w,b),lambda:fusedops.layer_norm(x,(C,),w,b)),('rms',lambda:F.rms_norm(x,(C,),w,1e-5),lambda:fusedops.rms_norm(x,(C,),w,1e-5)),('linear',lambda:F.linear(x,W,b),lambda:fusedops.linear(x,W,b))):
    print(name,'fwd %.1f ours %.1f both %.1f ours %.1f'%(best(t),best(o),best(both(t)),best(both(o))))
import sys
o={'ln':lambda:fusedops.layer_norm(x,(C,),w,b),'linear':lambda:fusedops.linear(x,W,b)}[sys.argv[1]]
def loop():
    for _ in range(3000): both(o)()
p=cProfile.Profile(); p.enable(); loop(); p.disable()
pstats.Stats(p).sort_stats('tottime').print_stats(22)
