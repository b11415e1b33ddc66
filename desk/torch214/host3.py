import torch, time, fusedops, torch.nn.functional as F
torch.set_num_threads(1)
x=torch.randn(4,16); w=torch.randn(16,16,requires_grad=True); b=torch.randn(16,requires_grad=True); g=torch.randn(16,requires_grad=True)
xr=x.clone().requires_grad_()
def t(f,n=2000,r=9):
    best=1e9
    for _ in range(r):
        s=time.perf_counter()
        for _ in range(n): f()
        best=min(best,(time.perf_counter()-s)/n)
    return round(best*1e6,2)
gy=torch.randn(4,16)
def both(f):
    def run():
        y=f()
        y=y[0] if isinstance(y,tuple) else y
        torch.autograd.grad(y,[xr,],gy)
    return run
for name,f in {
 'F.linear': lambda: F.linear(xr,w,b), 'linear': lambda: fusedops.linear(xr,w,b),
 'F.linear relu': lambda: F.relu(F.linear(xr,w,b)), 'linear relu': lambda: fusedops.linear(xr,w,b,activation='relu'),
 'F.rms': lambda: F.rms_norm(xr,(16,),g), 'rms': lambda: fusedops.rms_norm(xr,(16,),g),
 'F.ln': lambda: F.layer_norm(xr,(16,),g,b), 'ln': lambda: fusedops.layer_norm(xr,(16,),g,b),
 'softmax': lambda: fusedops.softmax(xr), 'F.softmax': lambda: F.softmax(xr,-1),
 }.items():
    with torch.no_grad(): a=t(f)
    print(name, a, t(f), t(both(f)))
