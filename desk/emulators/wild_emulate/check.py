import ctypes, itertools, torch, random, sys
lib=ctypes.CDLL("/tmp/w/emu/red.so")
NAMES=["short rows","packed rows","staged rows","long rows","strided rows","few rows","columns","scalar columns","few shifted rows","shifted columns","packed columns","staged columns"]
EL={torch.float16:0,torch.bfloat16:1,torch.float32:2,torch.float64:3,torch.uint8:4,torch.int8:5,torch.int16:6,torch.int32:7,torch.int64:8}
def guard(x, misalign):
    """x's values in memory of exactly its bytes at a page's end? Here: malloc'd exact, misaligned by elements."""
    return x
def run(op,x,dims,sm,second=False):
    n=x.dim(); red=[int(i in dims) for i in range(n)]
    A=ctypes.c_int64*n; I=ctypes.c_int*n
    shape=[x.shape[i] for i in range(n) if i not in dims]
    outdt={0:x.dtype if x.dtype.is_floating_point else torch.int64,5:torch.int64,7:x.dtype}[op]
    out=torch.full(shape,77).to(outdt) if outdt!=torch.bool else None
    out=out.contiguous(); sec=torch.zeros(shape,dtype=outdt)
    align=x.data_ptr()%16
    cnt=1
    for d in dims: cnt*=x.shape[d]
    scale=1.0 if op!=7 else 1.0/cnt
    r=lib.run_reduce(op,EL[x.dtype],x.element_size(),ctypes.c_void_p(x.data_ptr()),n,A(*x.shape),A(*x.stride()),I(*red),int(op==5),ctypes.c_uint64(2**64-1),ctypes.c_uint64(0),ctypes.c_double(scale),ctypes.c_void_p(out.data_ptr()),ctypes.c_void_p(sec.data_ptr()),sm,align)
    return r,out,sec
cases=[((3,5003),(0,)),((7,4001),(0,)),((2,2051),(0,)),((20,3001),(0,)),((50,1031),(0,)),((300,301),(0,)),((16,8,1501),(1,)),((9,5,1103),(1,)),((40,12,301),(1,)),((33,77,65),(1,)),
 ((9001,5),(0,)),((9001,7),(0,)),((30001,9),(0,)),((7001,3),(0,)),((5000,17),(0,)),((6000,31),(0,)),((4000,63),(0,)),((4000,50),(0,)),
 ((200,128,17),(1,)),((300,16,9),(1,)),((3,4097,31),(1,)),((500,9,3),(1,)),((100,64,7),(1,)),((33,5,13),(1,)),((5,2111,13),(1,)),((7,900,11),(0,)),((3,601,5,7),(0,2)),((3,601,2,7),(1,)),((2,3,700,9),(0,2)),((40,40,3),(1,)),((64,7,1),(1,)), ((70000,5),(0,)),((2,3001,5),(1,))]
seen={}
bad=0
DT={"b":torch.bfloat16,"f":torch.float32,"d":torch.float64,"u":torch.uint8}
for dt in [DT[c] for c in sys.argv[1]]:
  for shape,dims in cases:
    for off in (0,3):
      for pad in (0,1):
        full=list(shape); 
        if pad: full[-1]+=3
        num=1
        for s in full: num*=s
        base=torch.randint(0,7,(num+off+0,)).to(dt) if not dt.is_floating_point else torch.randint(-3,4,(num+off,)).to(dt)
        x=base[off:].view(full)
        if pad: x=x[...,1:1+shape[-1]]
        for sm in ((2,) if random.random()<.5 else (132,)):
          for op in (0,5):
            if op==5 and random.random()<.5: continue
            r,out,_=run(op,x,dims,sm)
            seen[NAMES[r] if r>=0 else r]=seen.get(NAMES[r] if r>=0 else r,0)+1
            if r<0: print("neg",r,shape); continue
            if op==0:
                want=x.to(torch.float64).sum(dims) if dt.is_floating_point else x.long().sum(dims)
                ok=torch.equal(out.double(),want.to(out.dtype).double())
            else:
                kept=[i for i in range(x.dim()) if i not in dims]
                y=x.permute(*kept,*dims).reshape(*[x.shape[i] for i in kept],-1).double().numpy()
                import numpy as np
                ok=np.array_equal(out.numpy(),y.argmax(-1))
            if not ok:
                bad+=1
                if bad<20: print(*("BAD",dt,shape,dims,off,pad,sm,op,NAMES[r], (out.double()!=(want.double() if op==0 else torch.from_numpy(y.argmax(-1)).double())).sum().item(), out.numel()), flush=True)
print(seen,"bad",bad)
