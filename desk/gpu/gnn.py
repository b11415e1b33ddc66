import sys; sys.path.insert(0,'/work/main/tests'); sys.path.insert(0,'/tmp/tv')
import torch, copy, fusedops
from integration.test_inductor import without_codegen
from torch_geometric.nn.models import GIN, GCN, GraphSAGE, GAT, EdgeCNN, PNA
torch.manual_seed(0)
x=torch.randn(30,8,dtype=torch.float64).requires_grad_(); e=torch.randint(30,(2,100))
for cls in (GIN,GCN,GraphSAGE,GAT,EdgeCNN):
    torch._dynamo.reset()
    m=cls(8,16,3,4).double(); o=copy.deepcopy(m)
    ours=fusedops.inductor(force=True)
    try:
        a=torch.compile(m,backend=without_codegen(ours["options"]),dynamic=False)(x,e); b=o(x,e)
        g=torch.autograd.grad(a.square().sum(),[x,*m.parameters()]); h=torch.autograd.grad(b.square().sum(),[x,*o.parameters()])
        print(cls.__name__,(a-b).abs().max().item(),max((p-q).abs().max().item() for p,q in zip(g,h)),ours.report.kinds())
    except Exception as ex: print(cls.__name__,type(ex).__name__,str(ex)[:200])
