import torch, fusedops
for dt in (torch.float32, torch.bfloat16):
    for m,n,k in ((4099,33,3),(4101,399,6),(5003,64,8),(4100,200,31),(8193,42,40),(4096,16,64)):
        x=torch.randn(m,k,device="cuda",dtype=dt); w=torch.randn(n,k,device="cuda",dtype=dt); b=torch.randn(n,device="cuda",dtype=dt)
        y=fusedops.linear(x,w,b,"gelu"); y2=fusedops.linear(x.t().contiguous().t(),w,b,"relu")
        w.requires_grad_(); z=fusedops.linear(x,w,b,"gelu")
        z.sum().backward()
torch.cuda.synchronize(); print("ran")
