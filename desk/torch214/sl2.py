import torch, sys
torch.manual_seed(0)
bad=0
for dt in (torch.float32, torch.bfloat16):
  for t in range(2000):
    x=torch.randn(200,88,dtype=dt); w=torch.randn(72,88,dtype=dt)
    big=torch.full((200,176+t%5),float('nan'),dtype=dt); xs=big[:, :88]; xs.copy_(x)
    y=xs@w.t()
    if not torch.isfinite(y).all(): bad+=1
  print(dt,bad)
