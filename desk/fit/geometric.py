import torch, copy, pickle, io
import torch_geometric.nn as g, fusedops
import fusedops._rewrite.clouds.messages as M
M.pays=lambda x,e: True
torch.manual_seed(0)
N,E=30,200
ei=torch.randint(N,(2,E)); x=torch.randn(N,8,dtype=torch.float64); w=torch.rand(E,dtype=torch.float64)
mk={
 'GIN':lambda: g.GINConv(torch.nn.Linear(8,4)), 'GCN':lambda: g.GCNConv(8,4), 'GCNc':lambda: g.GCNConv(8,4,cached=True),'SAGE':lambda: g.SAGEConv(8,4),'SAGEsum':lambda: g.SAGEConv(8,4,aggr='sum'),'SAGEmax':lambda: g.SAGEConv(8,4,aggr='max'),
 'Graph':lambda: g.GraphConv(8,4),'SG':lambda: g.SGConv(8,4,K=2),'TAG':lambda: g.TAGConv(8,4),'APPNP':lambda: g.APPNP(3,.1),'Cheb':lambda: g.ChebConv(8,4,3),'ARMA':lambda: g.ARMAConv(8,4),'GAT':lambda: g.GATConv(8,4),'LG':lambda: g.LGConv(),'GCN2':lambda: g.GCN2Conv(8,.1),
 'MF':lambda: g.MFConv(8,4),'EG':lambda: g.EGConv(8,4,num_heads=2),'Simple':lambda: g.SimpleConv('mean'),'MixHop':lambda: g.MixHopConv(8,4),'Signed':None,'Cluster':lambda: g.ClusterGCNConv(8,4),'FA':None,'LE':lambda: g.LEConv(8,4),'Gated':lambda: g.GatedGraphConv(8,2),'SSG':lambda: g.SSGConv(8,4,.1),'WL':lambda:g.WLConvContinuous(),'Hyper':lambda:g.HypergraphConv(8,4),
}
calls=[0]
orig=M.ordered_sum
def cs(*a): calls[0]+=1; return orig(*a)
M.ordered_sum=cs
for k,f in mk.items():
    if f is None: continue
    m=f().double(); a=copy.deepcopy(m); rep=fusedops.fuse(a)
    b=copy.deepcopy(a); c=pickle.loads(pickle.dumps(a))
    calls[0]=0
    args=(x,ei) if k!='GCN2' else (x,x,ei)
    def run(mod):
        xx=x.clone().requires_grad_(); ar=[xx if t is x else t for t in args]
        y=mod(*ar); y=y if isinstance(y,torch.Tensor) else y[0]
        gs=torch.autograd.grad(y.square().sum(),[xx,*mod.parameters()],allow_unused=True)
        return [y,*[t for t in gs if t is not None]]
    want=run(m)
    ns=[]
    for mod in (a,b,c):
        calls[0]=0
        got=run(mod); ns.append(calls[0])
        for p,q in zip(got,want): torch.testing.assert_close(p,q)
    print(k,type(a).__mro__[1].__name__,ns,[b.kind for b in rep.blocks])
