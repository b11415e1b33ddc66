import torch, fusedops
from functorch.compile import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode
import fusedops.ops.conv as cv
from fusedops._inductor.pre_grad.conv_layer import ConvLayer, conv_layer
for n in ("uses_product","uses_depthwise","uses_first","uses_image"):
    real=getattr(cv,n); setattr(cv,n,lambda d,*a,real=real: real("cuda",*a))
def trace(label,xs,ws,win,res=False,hands=False,act="relu",dt=torch.bfloat16):
    ops=[];n=[0,0]
    def pr(i):
        def c(gm,ex):
            n[i]=len(gm.graph.nodes)
            for x in gm.graph.nodes:
                if x.op=='call_function' and ('fusedops' in str(x.target) or 'convolution' in str(x.target) or 'auto_func' in str(x.target)):
                    ops.append((('F','B')[i], str(x.target).replace('.default','') + (':'+str(x.args[0]) if 'auto' in str(x.target) else '')))
            return gm
        return c
    with FakeTensorMode(allow_non_fake_inputs=True):
        r=lambda *s,g=True: torch.empty(*s,dtype=dt,requires_grad=g)
        x=torch.empty(*xs,dtype=dt).contiguous(memory_format=torch.channels_last).requires_grad_()
        w=torch.empty(*ws,dtype=dt).contiguous(memory_format=torch.channels_last).requires_grad_()
        o=ws[0]
        args=[x,w,r(o),r(o),r(o,g=False),r(o,g=False)]
        y0=torch.nn.functional.conv2d(x,w,None,*win)
        rs=torch.empty_like(y0).requires_grad_() if res else None
        def f(x,w,g,b,m,v,*rr):
            y,h=conv_layer(x,w,None,(m,v,g,b),rr[0] if rr else None,win,act,.1,1e-5,hands)
            return (y, h*2) if hands else y
        out=aot_function(f,fw_compiler=pr(0),bw_compiler=pr(1))(*args,*([rs] if res else []))
        y=out[0] if hands else out
        (y.sum()+(out[1].sum() if hands else 0)).backward()
    print(label,tuple(y.shape),y.stride(),n,ops)
trace("1x1",(64,256,14,14),(64,256,1,1),(1,0,1,1),hands=True)
trace("1x1 res",(64,64,14,14),(256,64,1,1),(1,0,1,1),res=True)
trace("small",(64,512,7,7),(2048,512,1,1),(1,0,1,1))
trace("3x3",(8,64,56,56),(64,64,3,3),(1,1,1,1))
trace("3x3 256",(8,256,14,14),(256,256,3,3),(1,1,1,1))
trace("stem",(8,3,224,224),(64,3,7,7),(2,3,1,1))
trace("dw",(8,96,56,56),(96,1,3,3),(1,1,1,96),act="silu")
