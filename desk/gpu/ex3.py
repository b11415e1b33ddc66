import torch, fusedops, sys, itertools
from fusedops import points
from functorch.compile import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode
from fusedops.points import _edge_fused, _edge_rows
from fusedops._inductor.pre_grad.group_layer import GroupLayer, group_layer
dev='cpu'
def trace(label, make, fused=True, autocast=False, grad=True):
    _edge_fused._shared_limit=lambda d: 232448 if fused else 0
    _edge_fused._has_infer_kernels=lambda d: fused
    _edge_rows._runs_on=lambda d: True
    ops=set(); n=[0,0]
    def pr(i):
        def c(gm,ex):
            n[i]=len(gm.graph.nodes)
            for x in gm.graph.nodes:
                if x.op=='call_function' and 'fusedops' in str(x.target): ops.add(str(x.target).replace('fusedops.','').replace('.default',''))
            return gm
        return c
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.set_grad_enabled(grad), torch.autocast('cpu',torch.bfloat16,enabled=autocast):
        args=make()
        flat,spec=torch.utils._pytree.tree_flatten(tuple(args))
        tens=[t for t in flat if isinstance(t,torch.Tensor)]
        def f(*ts):
            it=iter(ts)
            g=[next(it) if isinstance(t,torch.Tensor) else t for t in flat]
            return group_layer(*torch.utils._pytree.tree_unflatten(g,spec))
        y=aot_function(f, fw_compiler=pr(0), bw_compiler=pr(1))(*tens)
        if grad:
            try: y.sum().backward()
            except Exception as e: print('   bw run', type(e).__name__, str(e)[:80])
    print(label, tuple(y.shape), y.dtype, n, sorted(ops))
def layer(kind,widths,C,dt=torch.bfloat16,training=True,wdt=None,conv=False,xyz_grad=False):
    def make():
        B,N,M,K=2,256,128,16
        r=lambda *s,d=dt,g=True: torch.empty(*s,dtype=d,requires_grad=g)
        wdt_=wdt or dt
        f=[r(B,N,C,d=torch.float32 if wdt else dt)] if C else []
        if kind=='edge_conv': M=N
        cols=2*C if kind=='edge_conv' else 3+C
        ws=[];norms=[]
        for a,b in itertools.pairwise((cols,*widths)):
            ws.append(r(b,a,1,1,d=wdt_) if conv else r(b,a,d=wdt_)); norms.append((r(b,d=wdt_),r(b,d=wdt_),r(b,d=wdt_,g=False),r(b,d=wdt_,g=False),training,.1,1e-5))
        x=None if kind=='edge_conv' else r(B,N,3,d=torch.float32,g=xyz_grad)
        c=None if kind=='edge_conv' else r(B,M,3,d=torch.float32,g=xyz_grad)
        return GroupLayer(kind,x,f,c,torch.empty(B,M,K,dtype=torch.int64),ws,[None]*len(ws),norms,0,'relu',0.0,True,None,(0,2,1),(B,widths[-1],M))
    return make
trace('sa1',layer('set_abstraction',(64,64,128),0))
trace('sa2',layer('set_abstraction',(128,128,256),128,conv=True))
trace('sa2 xyz grad',layer('set_abstraction',(128,128,256),128,xyz_grad=True))
trace('sa2 eval',layer('set_abstraction',(128,128,256),128,training=False),grad=False)
trace('sa2 eval grad',layer('set_abstraction',(128,128,256),128,training=False))
trace('sa wide',layer('set_abstraction',(256,512,1024),256))
trace('sa wide infer',layer('set_abstraction',(256,512,1024),256,training=False),grad=False)
trace('rows',layer('set_abstraction',(64,64,128),32),fused=False)
trace('edge1',layer('edge_conv',(64,),64))
trace('edge2',layer('edge_conv',(64,128),64))
trace('autocast',layer('set_abstraction',(64,64,128),16,wdt=torch.float32),autocast=True)
trace('autocast wide',layer('set_abstraction',(256,512,1024),256,wdt=torch.float32),autocast=True)
