# Tensors that end, and begin, at an unreadable page: an access outside of them would fault.
import ctypes, mmap, torch, sys
exec(open("/tmp/w/emu/check.py").read().split("cases=[")[0])
libc=ctypes.CDLL(None,use_errno=True); libc.mmap.restype=ctypes.c_void_p; libc.mmap.argtypes=[ctypes.c_void_p,ctypes.c_size_t,ctypes.c_int,ctypes.c_int,ctypes.c_int,ctypes.c_long]; libc.mprotect.argtypes=[ctypes.c_void_p,ctypes.c_size_t,ctypes.c_int]
def guarded(nbytes, at_end):
    pages=(nbytes+4095)//4096*4096
    p=libc.mmap(None,pages+8192,3,0x22,-1,0)
    libc.mprotect(p,4096,0); libc.mprotect(p+4096+pages,4096,0)
    return p+4096+(pages-nbytes if at_end else 0)
def tensor(shape,dt,at_end):
    n=torch.Size(shape).numel(); size=torch.empty((),dtype=dt).element_size()
    buf=(ctypes.c_uint8*(n*size)).from_address(guarded(n*size,at_end))
    t=torch.frombuffer(buf,dtype=dt).view(shape); t.copy_(torch.randint(0,4,shape).to(dt)); return t
for dt in (torch.bfloat16,torch.float32,torch.uint8):
  for shape,dims in [((3,5003),(0,)),((300,301),(0,)),((16,8,1501),(1,)),((9001,5),(0,)),((9001,7),(0,)),((3,4097,31),(1,)),((200,128,17),(1,)),((500,9,3),(1,)),((41,41,3),(1,)),((20,3001),(0,)),((33,77,65),(1,))]:
    for at_end in (0,1):
      x=tensor(shape,dt,at_end)
      for op in (0,5):
        r,out,_=run(op,x,dims,132)
        if op==0:
          want=x.double().sum(dims); assert torch.equal(out.double(),want.to(out.dtype).double()),(shape,dt,NAMES[r])
      print(dt,shape,at_end,NAMES[r],flush=True)
print("all inside")
