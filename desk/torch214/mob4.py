import torch, copy, fusedops, torchvision, sys
from fusedops._rewrite.convs import unit as units
units.may_pay=units.pays=lambda *_: True
def results(model,x):
    torch.manual_seed(3)
    y=model(x); y.square().mean().backward()
    g={n:p.grad.clone() for n,p in model.named_parameters() if p.grad is not None}; model.zero_grad(); g['y']=y.detach(); return g
for s in (0,1,2,3):
    torch.manual_seed(s)
    m=torchvision.models.mobilenet_v2(); a=m; b=copy.deepcopy(m); fusedops.fuse(b)
    x=torch.randn(2,3,64,64)
    A=results(a.train(),x); B=results(b.train(),x)
    n='features.0.0.weight'
    print(s,(A[n]-B[n]).norm().item()/A[n].norm().item(), (A['y']-B['y']).norm().item()/A['y'].norm().item(), flush=True)
