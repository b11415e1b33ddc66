import torch,time
torch.ops.load_library('/tmp/mb/mb.so'); torch.set_num_threads(1)
x=torch.randn(4,16,dtype=torch.bfloat16);w=torch.randn(16,16,dtype=torch.bfloat16);b=torch.randn(16,dtype=torch.bfloat16)
def t(f,n=5000,r=15):
    best=1e9
    for _ in range(r):
        s=time.perf_counter()
        for _ in range(n): f()
        best=min(best,(time.perf_counter()-s)/n)
    return best*1e6
f=torch.ops.mb.noop.default
g=torch.ops.mb.through.default; print('noop',t(lambda:f(x))); print('pass',t(lambda:g(x,w,b,1,False)))
print('aten relu', t(lambda: torch.ops.aten.view.default(x,(4,16))))
torch.ops.mb.bench(x)
