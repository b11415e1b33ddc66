import torch, fusedops, sys; sys.path.insert(0,'/work/main/tests')
from integration.test_inductor import without_codegen
from fusedops.bench.suites.models.suite import MODELS
for name in sys.argv[1:]:
    torch._dynamo.reset()
    m=[x for x in MODELS if x.name==name][0]
    try: l=m.load(True, torch.float32, torch.device('cpu'))
    except Exception as e: print(name,e); continue
    import copy; l.module.train(); t=copy.deepcopy(l.module)
    ours=fusedops.inductor(force=True)
    a=l.spec.loss(l.module,*l.data); a.backward()
    f=torch.compile(lambda *d: l.spec.loss(t,*d),dynamic=False,backend=without_codegen(ours['options']))
    b=f(*l.data); b.backward()
    g=max(((p.grad-q.grad).norm()/(p.grad.norm()+1e-6)).item() for p,q in zip(l.module.parameters(),t.parameters()) if p.grad is not None)
    print(name,a.item(),b.item(),g,'masks',ours.report.masks,'shared',ours.report.shared_masks,ours.report.kinds(),flush=True)
