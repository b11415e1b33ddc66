import torch, copy, fusedops, torchvision, sys
from fusedops._rewrite.convs import unit as units
units.may_pay=units.pays=lambda *_: True
torch.manual_seed(0)
m=torchvision.models.mobilenet_v2(); a=m; b=copy.deepcopy(m); fusedops.fuse(b)
x=torch.randn(2,3,64,64)
def results(model,x):
    torch.manual_seed(3)
    y=model(x); y.square().mean().backward()
    g={n:p.grad.clone() for n,p in model.named_parameters() if p.grad is not None}; model.zero_grad(); g['y']=y.detach(); return g
a.train(); b.train()
A0=results(a,x); B0=results(b,x)
na=nb=0
import time; t=time.time(); i=0
while time.time()-t<float(sys.argv[1]):
    A=results(a,x); B=results(b,x); i+=1
    da=[n for n in A if not torch.equal(A[n],A0[n])]; db=[n for n in B if not torch.equal(B[n],B0[n])]
    if da: na+=1; print('torch differs',i,len(da),da[-1],(A['features.0.0.weight']-A0['features.0.0.weight']).norm().item(),(A['y']-A0['y']).abs().max().item())
    if db: nb+=1; print('ours differs',i,len(db),db[-1],(B['features.0.0.weight']-B0['features.0.0.weight']).norm().item(),(B['y']-B0['y']).abs().max().item())
print(i,'runs; torch',na,'ours',nb)
