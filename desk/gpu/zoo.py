import sys; sys.path.insert(0,'/work/main/tests'); sys.path.insert(0,'/tmp/tv')
import torch, copy, fusedops, timm, warnings, time
warnings.filterwarnings("ignore")
from integration.test_inductor import without_codegen
names=sys.argv[1:]
for name in names:
    torch._dynamo.reset(); torch.manual_seed(0); t0=time.time()
    try:
        m=timm.create_model(name,num_classes=10).double().to(memory_format=torch.channels_last).train()
        size=64
        x=torch.randn(3,3,size,size,dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
        o=copy.deepcopy(m); e=copy.deepcopy(m)
        ours=fusedops.inductor(force=True)
        f=torch.compile(m,backend=without_codegen(ours["options"]),dynamic=False)
        a=f(x); b=o(x)
        r=str(sorted({k: ours.report.kinds().count(k) for k in set(ours.report.kinds())}.items()))
        fe=(a-b).abs().max().item()/b.abs().max().item()
        P=[x,*m.parameters()]; Q=[x,*o.parameters()]
        ga=torch.autograd.grad(a.square().sum(),P,allow_unused=True); gb=torch.autograd.grad(b.square().sum(),Q,allow_unused=True)
        mx=max(q.norm().item() for q in gb if q is not None)
        ge=max(((p-q).norm()/(q.norm()+1e-9*mx)).item() for p,q in zip(ga,gb) if q is not None)
        be=max((p.double()-q.double()).abs().max().item() for p,q in zip(m.buffers(),o.buffers())) if list(m.buffers()) else 0
        nc=sum(isinstance(k,(torch.nn.modules.conv._ConvNd)) for k in m.modules())
        print(("BAD " if fe>1e-8 or ge>1e-6 or be>1e-8 else "ok  ")+f"{name:28s} convs {nc} {r} y {fe:.1e} grads {ge:.1e} buffers {be:.1e} {time.time()-t0:.0f}s",flush=True)
        # inference
        torch._dynamo.reset(); ours=fusedops.inductor(force=True); e.eval(); 
        with torch.no_grad():
            fe=torch.compile(e,backend=without_codegen(ours["options"]),dynamic=False)(x); oe=copy.deepcopy(e); ye=oe(x)
        d=(fe-ye).abs().max().item()/ye.abs().max().item()
        if d>1e-8: print("BAD infer",name,d,flush=True)
    except Exception as ex: print("ERR ",name,type(ex).__name__,str(ex)[:150],flush=True)
