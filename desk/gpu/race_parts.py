import sys, torch, fusedops
run = torch.ops.fusedops_tuning.gemm_unaligned
t = int(sys.argv[1])
for m,n,k in ((131,133,515),(700,300,260)):
    a = torch.randn(m,k,device="cuda"); b = torch.randn(n,k,device="cuda")
    for aa in (a, a.t().contiguous().t()):
        for bb in (b, b.t().contiguous().t()):
            y = run(aa,bb.t(),torch.randn(n,device="cuda"),3,t,1,0)
torch.cuda.synchronize()
