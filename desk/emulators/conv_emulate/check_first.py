"""Emulated first-layer ops against float64: check_first.py LIB"""
import os, sys, torch, torch.nn.functional as F, fusedops
src = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "check.py")).read(); exec(src[:src.index("CASES =")])
CASES = [(1,33,70,64,7,3),(2,32,64,64,7,3),(1,40,33,32,7,3),(1,9,9,64,7,8),(2,17,35,24,3,1),(1,18,70,64,3,1),(1,36,70,16,7,2),(1,20,21,8,3,0),(3,7,8,48,7,3),(1,40,132,32,3,1)]
for dt in (torch.bfloat16, torch.float16):
    for n,h,w,o,k,p in CASES:
        x = inside((n,h,w,3), dt); wt = inside((o,k,k,3), dt, 1/k)
        L = [x.double().requires_grad_(), wt.double().requires_grad_()]
        z = F.conv2d(L[0].movedim(-1,1), L[1].movedim(-1,1), None, 2, p).movedim(1,-1)
        dy = inside(z.shape, dt); G = torch.autograd.grad(z, L, dy.double()); v = torch.rand(o) + .5
        g = (2,2,p,p); tag = (str(dt)[6:],n,h,w,o,k,p); outs = []
        for back in (0, 1):
            if back: os.environ["BACK"] = "1"
            else: os.environ.pop("BACK", None)
            outs.append([ops.first_conv(x, wt, *[None]*5, *g, 0.0, 0), ops.first_conv_image(dy, x, wt, *g), ops.first_conv_weight(dy, x, wt, *g)])
        if not all(torch.equal(a, b) for a, b in zip(*outs)): bad += 1; print("ORDER", tag)
        for name, a, b in zip(("y","dx","dw"), outs[0], (z.detach(), *G)): check((name,)+tag, a, b)
        print(tag, "ok so far" if not bad else "", flush=True)
print(f"{bad} bad of {ran}")
