exec(open('/tmp/pe/lone.py').read().split("def cmp")[0])
from fusedops.points import set_abstraction
refs=fusedops.reference.set_abstraction
def run2(fn, xyz, x, cen, ws, idx, gs, bs, dt, training=True, moves=False):
    wide=torch.float64 if dt==torch.float64 else torch.float32
    xyz=xyz.to(wide); cen=cen.to(wide)
    if moves: xyz.requires_grad_(); cen.requires_grad_()
    x=x.to(dt).requires_grad_(); ws=[w.to(dt).requires_grad_() for w in ws]
    bns=[BatchNorm(g.to(wide),b.to(wide),torch.zeros_like(g).to(wide),torch.ones_like(g).to(wide),training) for g,b in zip(gs,bs)]
    out=fn(xyz,x,cen,idx,ws,norms=bns,activation=None)
    d=torch.randn(out.shape,generator=torch.Generator().manual_seed(3),dtype=torch.float64).bfloat16().to(out.dtype)
    return [out.detach(), bns[-1].running_mean, bns[-1].running_var, *torch.autograd.grad(out,[x,*ws,*([xyz,cen] if moves else [])],d)]
err=lambda a,c: float((a.double()-c).norm()/c.norm().clamp_min(1e-30))
B,N,M,K=2,60,20,20
xyz=torch.rand(B,N,3); cen=xyz[:,:M].contiguous()
for F,ch,mv in ((6,(32,32,64),False),(6,(64,),False),(12,(32,64),True),(12,(64,),True)):
    ws=[(torch.randn(b,a)/a**.5).bfloat16().float() for a,b in zip((3+F,*ch[:-1]),ch)]
    gs=[1+.3*torch.randn(c) for c in ch]; bs=[torch.randn(c) for c in ch]
    x=torch.randn(B,N,F).bfloat16().float(); idx=torch.randint(N,(B,M,K)); idx[:,::2,9:]=idx[:,::2,:1]; idx[0,1]=-1; idx[1,3,5:]=-1
    r=run2(refs,xyz,x,cen,ws,idx,gs,bs,torch.float64,moves=mv); m=run2(set_abstraction,xyz,x,cen,ws,idx,gs,bs,torch.bfloat16,moves=mv); e=run2(refs,xyz,x,cen,ws,idx,gs,bs,torch.bfloat16,moves=mv)
    print(F,ch,mv," ".join(f"{err(a,c):.1e}/{err(ee,c):.1e}" for a,ee,c in zip(m,e,r)))
