import torch, time, gc, torch.nn.functional as F, fusedops
from torch import nn
torch.set_num_threads(1)
def best(f,n=200,reps=8):
    for _ in range(20): f()
    m=1e9
    gc.disable()
    for _ in range(reps):
        t=time.perf_counter()
        for _ in range(n): f()
        m=min(m,(time.perf_counter()-t)/n)
    return m*1e6
C=8; x=torch.randn(16,C,requires_grad=True); w=nn.Parameter(torch.ones(C)); b=nn.Parameter(torch.zeros(C)); rm=torch.zeros(C); rv=torch.ones(C)
g=torch.ones(16,C)
def theirs():
    y=F.relu(F.batch_norm(x,rm,rv,w,b,True,0.1,1e-5)); return y
def ours():
    return fusedops.batch_norm_act(x,rm,rv,w,b,activation="relu",training=True,momentum=0.1,eps=1e-5)
def both(f):
    def run():
        y=f(); y.backward(g); x.grad=w.grad=b.grad=None
    return run
print('fwd theirs %.1f ours %.1f'%(best(theirs),best(ours)))
print('both theirs %.1f ours %.1f'%(best(both(theirs)),best(both(ours))))
m=nn.Sequential(nn.Linear(8,8,bias=False),nn.BatchNorm1d(8),nn.ReLU()); 
import copy
f=copy.deepcopy(m); 
from fusedops._rewrite.convs import rows
print('run_norm %.1f, modules %.1f'%(best(lambda: rows.run_norm(x,m[1],m[2])), best(lambda: m[2](m[1](x)))))
import cProfile,pstats
def loop():
    for _ in range(3000):
        y=ours(); y.backward(g); x.grad=w.grad=b.grad=None
p=cProfile.Profile(); p.enable(); loop(); p.disable()
pstats.Stats(p).sort_stats('tottime').print_stats(32)
O=torch.ops.fusedops
xd=x.detach(); wd=w.detach(); bd=b.detach()
print('train_ op', best(lambda:O.batch_norm_train_.default(xd,wd,bd,None,None,rm,rv,0.1,1e-5,2)))
