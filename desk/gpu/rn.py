import sys; pass
import torch, copy, fusedops, torchvision
torch.manual_seed(0)
m=getattr(torchvision.models,sys.argv[1])(num_classes=10).double().to(memory_format=torch.channels_last).train()
for mod in m.modules():
    if isinstance(mod,torch.nn.Dropout): mod.p=0.
    if 'StochasticDepth' in type(mod).__name__: mod.p=0.
x=torch.randn(2,3,64,64,dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
o=copy.deepcopy(m)
ours=fusedops.inductor(force=True)
if len(sys.argv)>2:
    sys.path.insert(0,'/work/main/tests'); from integration.test_inductor import without_codegen
    f=torch.compile(m,backend=without_codegen(ours["options"]),dynamic=False)
else: f=torch.compile(m,**ours)
a=f(x); b=o(x)
print(sys.argv[1], len(ours.report.replaced), {k: ours.report.kinds().count(k) for k in set(ours.report.kinds())}, [s.activation for s in ours.report.replaced][:4])
print((a-b).abs().max().item()/b.abs().max().item())
ga=torch.autograd.grad(a.square().sum(),[x,*m.parameters()]); gb=torch.autograd.grad(b.square().sum(),[x,*o.parameters()])
print(max(((p-q).norm()/(q.norm()+1e-12)).item() for p,q in zip(ga,gb) if q.norm()>1e-9))
print(max((p.double()-q.double()).abs().max().item() for p,q in zip(m.buffers(),o.buffers())))
