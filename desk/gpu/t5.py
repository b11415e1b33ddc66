import torch, fusedops, sys
from fusedops.bench.suites.models.suite import MODELS
name=sys.argv[1]
m=[x for x in MODELS if x.name==name][0]
l=m.load(True, torch.bfloat16, torch.device('cpu'))
class P(torch._inductor.custom_graph_pass.CustomGraphPass):
    def __call__(self,g):
        for n in g.nodes:
            if n.op=='placeholder': continue
            ev=n.meta.get('example_value')
            print(n.op,n.name,str(n.target)[:50],str(n.args)[:160],str(n.kwargs)[:120], (tuple(ev.shape),ev.dtype) if isinstance(ev,torch.Tensor) else '')
    def uuid(self): return None
l.module.train()
f=torch.compile(lambda *d: l.spec.loss(l.module,*d),options={"pre_grad_custom_pass":P()},dynamic=False)
f(*l.data)
