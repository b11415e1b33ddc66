import sys, ctypes, itertools, math, random
sys.path.insert(0,"/work/wt/rows/python"); sys.path.insert(0,"/work/wt/rows/tests")
import torch, fusedops
from fusedops import reference
names="add add_out fma fma_out square square_out square_backward relu relu_out bias_dropout_residual bias_dropout_residual_out bias_dropout_residual_backward scale_bias_act scale_bias_act_out scale_bias_act_backward segment_reduce segment_reduce_backward cumsum cumprod cummax cummin stencil stencil_backward".split()
lib=torch.library.Library("emu","DEF")
for n in names:
    sch=str(getattr(torch.ops.fusedops,n).default._schema).replace("fusedops::","")
    lib.define(sch)
torch.ops.load_library("/tmp/rows_emu/emu.so")
E, F = torch.ops.emu, torch.ops.fusedops
bad=0
def same(what,a,b,tol=0):
    global bad
    for x,y in zip(a if isinstance(a,tuple) else (a,), b if isinstance(b,tuple) else (b,)):
        ok = torch.equal(x,y) if tol==0 else torch.allclose(x.double(),y.double(),rtol=tol,atol=tol)
        if not ok or x.stride()!=y.stride():
            bad+=1; print("BAD",what,(x.double()-y.double()).abs().max().item() if x.shape==y.shape else (x.shape,y.shape)); return
torch.manual_seed(0)
which=sys.argv[1:] or ["ew","act","seg","scan","soft","sten"]
if "ew" in which:
    for dt in (torch.bfloat16, torch.float32, torch.float64):
        for shape in ((4,7),(271,79),(5,3,9),(2,3,4,5),(33,64)):
            x,y=(torch.randn(shape).to(dt) for _ in range(2))
            b=torch.randn(shape[-1]).to(dt); s=torch.tensor([7])
            views={"plain":lambda t:t,"sliced":lambda t:t[...,1:],"step":lambda t:t[...,::2],"t":lambda t:t.transpose(0,-1),"t01":lambda t:t.transpose(0,1),"row":lambda t:t[1:],"exp":lambda t:t[:1].expand(t.shape)}
            for (nv,v),(nw,w) in itertools.product(views.items(),repeat=2):
                a,c=v(x),w(y)
                if a.shape!=c.shape: continue
                same(("add",dt,shape,nv,nw),E.add(a,c),F.add(a,c))
                same(("fma",dt,shape,nv,nw),E.fma(a,c,a),F.fma(a,c,a),1e-2 if dt==torch.bfloat16 else 1e-6)
                same(("bdr",dt,shape,nv,nw),E.bias_dropout_residual(a,None,c,s,0.3),F.bias_dropout_residual(a,None,c,s,0.3),1e-2 if dt==torch.bfloat16 else 1e-5)
                out=torch.empty(a.shape,dtype=dt); buf=torch.empty(a.numel()+3,dtype=dt)[3:].view(a.shape)
                E.bias_dropout_residual_out(a,None,c,s,0.3,buf); same(("bdr out",dt,shape,nv,nw),buf,F.bias_dropout_residual(a,None,c,s,0.3),1e-2 if dt==torch.bfloat16 else 1e-5)
            for nv,v in views.items():
                a=v(x)
                if a.shape[-1]!=b.numel(): bb=torch.randn(a.shape[-1]).to(dt)
                else: bb=b
                same(("sba",dt,shape,nv),E.scale_bias_act(a,bb,bb,1),F.scale_bias_act(a,bb,bb,1),2e-2 if dt==torch.bfloat16 else 1e-5)
                same(("sba3",dt,shape,nv),E.scale_bias_act(a,None,bb,3),F.scale_bias_act(a,None,bb,3),2e-2 if dt==torch.bfloat16 else 1e-4)
    print("ew done",bad,flush=True)
if "act" in which:
    for dt in (torch.bfloat16, torch.float32):
        for shape in ((1025,67),(521,301),(700,323),(600,129),(2051,3),(900,37),(640,21),(33,64),(8000,5)):
            x,dy=(torch.randint(-3,4,shape).to(dt) for _ in range(2)); sc=torch.ones(shape[1],dtype=dt); b=torch.zeros(shape[1],dtype=dt)
            got=E.scale_bias_act_backward(dy,x,sc,b,0,True,True,True); want=F.scale_bias_act_backward(dy,x,sc,b,0,True,True,True)
            same(("act",dt,shape),got,want,1e-2 if dt==torch.bfloat16 else 0)
            s=torch.tensor([5])
            same(("drop back",dt,shape),E.bias_dropout_residual_backward(dy,s,0.5,True,True),F.bias_dropout_residual_backward(dy,s,0.5,True,True),1e-2 if dt==torch.bfloat16 else 0)
    print("act done",bad,flush=True)
if "seg" in which:
    for dt in (torch.bfloat16, torch.float32, torch.float64):
        for rows,cols in ((769,320),(300,3),(600,33),(100,1),(2000,8),(50,200),(5,700),(0,4),(900,64),(1200,17),(400,203),(300,6)):
            for kind in (0,1,2,3):
                for S in (1,7,168,601):
                    for gaps in (0,1):
                        cut=torch.randint(0,rows+1,(S-1,)).sort().values if S>1 else torch.zeros(0,dtype=torch.long)
                        if random.random()<.4: cut=torch.clamp(torch.arange(S-1),max=rows)
                        off=torch.cat([torch.tensor([min(2,rows) if gaps else 0]),cut.clamp(min=min(2,rows) if gaps else 0),torch.tensor([max(rows-3,2 if rows>2 else rows) if gaps else rows])]).cummax(0).values
                        x=torch.randint(-4,5,(rows,cols)).to(dt); xx=x
                        if random.random()<.3: xx=torch.cat([x,x],1)[:,:cols]
                        same(("seg",dt,rows,cols,kind,S,gaps),E.segment_reduce(xx,off,kind),F.segment_reduce(xx,off,kind),1e-2 if dt==torch.bfloat16 and kind<2 else 1e-6 if kind<2 else 0)
    print("seg done",bad,flush=True)
if "scan" in which:
    for dt in (torch.bfloat16, torch.float32, torch.int64):
        for shape in ((64,),(1,),(7,1),(37,61),(16,64),(150,100),(5,3),(90,7),(13,512),(5,1023),(2,3000),(29,16)):
            x=torch.randint(0,3,shape).to(dt)
            for ex,rev in itertools.product((False,True),repeat=2):
                same(("cumsum",dt,shape,ex,rev),E.cumsum(x,-1,ex,rev),F.cumsum(x,-1,ex,rev))
            same(("cummax",dt,shape),tuple(E.cummax(x,-1)),tuple(F.cummax(x,-1)))
            same(("cummin",dt,shape),tuple(E.cummin(x,-1)),tuple(F.cummin(x,-1)))
    print("scan done",bad,flush=True)
if "soft" in which:
    so=ctypes.CDLL("/tmp/rows_emu/emu.so"); seen={}
    P=lambda t: ctypes.c_void_p(t.data_ptr() if t is not None else None)
    for dt in (torch.float32, torch.bfloat16):
        for n in (2,4,7,8,9,19,33,64,65,127,129,250,256):
            for rows in (5,77):
              for most in (0,32):
               for log in (0,1):
                for sm in (1,):
                    x=torch.randn(rows,n).to(dt); y=torch.full_like(x,9)
                    r=so.run_soft(int(dt==torch.float32),P(x),P(y),P(None),ctypes.c_int64(rows),n,log,most,sm); seen[r]=seen.get(r,0)+1
                    if r<0: continue
                    w=(torch.log_softmax if log else torch.softmax)(x.double(),1)
                    e=(y.double()-w).norm()/w.norm().clamp_min(1e-9)
                    if not e<(1e-5 if dt==torch.float32 else 1e-2): bad+=1; print("BAD soft",dt,n,rows,most,log,r,e)
                    if log: continue
                    dy=torch.randn(rows,n).to(dt); dx=torch.full_like(x,9)
                    so.run_soft(int(dt==torch.float32),P(y),P(dx),P(dy),ctypes.c_int64(rows),n,0,most,sm)
                    w=y.double()*(dy.double()-(dy.double()*y.double()).sum(1,keepdim=True))
                    e=(dx.double()-w).norm()/w.norm().clamp_min(1e-9)
                    if not e<(1e-5 if dt==torch.float32 else 1e-2): bad+=1; print("BAD soft back",dt,n,rows,most,r,e)
    print("soft done",bad,seen,flush=True)
if "sten" in which:
    for dt in (torch.bfloat16, torch.float32):
        for shape,k in (((2,3,7,7),3),((30,3,7,7),3),((5,9,8,13),3),((3,4,9,17),5),((1,2,20,30),5),((40,3,4,4),3),((4,5,5,5),3)):
            for pad in range(4):
                x=torch.randint(-3,4,shape).to(dt); w=torch.randint(-2,3,(shape[1],k,k)).to(dt)
                if min(shape[2:])<k: continue
                same(("sten",dt,shape,k,pad),E.stencil(x,w,1.0,2,pad),F.stencil(x,w,1.0,2,pad),1e-2 if dt==torch.bfloat16 else 0)
        for shape,k in (((2,3,7,7),(3,3)),((30,3,7,7),(3,3)),((5,9,8,13),(3,3)),((3,4,9,17),(5,5)),((1,2,20,30),(5,5)),((9,3,12),(3,)),((11,16,13),(7,)),((3,4,70),(5,)),((2,3,9,16),(7,7)),((2,3,4,5,6),(3,3,3)),((4,8,29,12),(3,3)),((2,2,6,9),(3,5)),((1,1,80,40),(3,3)),((70,4,5,7),(3,3))):
            for pad in range(4):
                dims=len(k); C=shape[-dims-1]
                if min(a-b for a,b in zip(shape[-dims:],k))<0: continue
                for own in (0,1):
                    x=torch.randint(-3,4,shape).to(dt); dy=torch.randint(-3,4,shape).to(dt); w=torch.randint(-2,3,((C,) if own else ())+k).to(dt)
                    same(("stenf",dt,shape,k,pad,own),E.stencil(x,w,1.0,dims,pad),F.stencil(x,w,1.0,dims,pad),1e-2 if dt==torch.bfloat16 else 0)
                    same(("stenb",dt,shape,k,pad,own),E.stencil_backward(dy,x,w,0.5,dims,pad,True,True),F.stencil_backward(dy,x,w,0.5,dims,pad,True,True),1e-2 if dt==torch.bfloat16 else 0)
    print("sten done",bad,flush=True)
print("bad",bad)
