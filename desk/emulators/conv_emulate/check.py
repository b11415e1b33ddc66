"""Emulated depthwise ops against float64: check.py LIB [quick]"""
import os, sys, torch, torch.nn.functional as F, fusedops
torch.ops.load_library(sys.argv[1]); ops = torch.ops.fusedops; torch.manual_seed(0)
def inside(shape, dt, scale=1.0, shift=0):
    """Values in the middle of NaNs, at an address of 16 bytes (+ shift elements)."""
    n = 1
    for s in shape: n *= s
    base = torch.full((n + 4096,), float("nan")).to(dt); off = 1024 + (-(base.data_ptr() // 2 + 1024)) % 8 + shift
    t = base[off:off + n].view(shape); t.copy_(torch.randn(shape) * scale); return t
bad = ran = 0
def check(name, got, want):
    global bad, ran
    ran += 1
    r = (want.to(got.dtype).double() - want).norm()
    e = (got.double() - want).norm()
    if not e <= 1.05 * r + 5e-6 * want.norm(): bad += 1; print("BAD", name, float(e), float(r), flush=True)
CASES = [(2,14,14,64,5,1,2),(1,14,14,480,5,1,2),(2,7,7,72,3,1,1),(1,28,28,24,3,1,1),(1,29,17,16,3,2,1),(1,28,28,144,5,2,2),(1,33,31,40,5,2,2),(2,9,12,8,3,1,0),(1,5,6,56,5,1,4),(1,8,9,136,3,2,0),(1,21,22,16,3,2,2),(3,3,2,8,5,2,2),(1,1,1,8,3,1,1),(2,50,5,8,3,1,1),(1,4,61,8,5,1,2),(1,30,44,96,3,2,1),(2,10,10,200,5,2,1)]
for dt in (torch.bfloat16, torch.float16):
    for n,h,w,c,k,s,p in CASES[:6 if len(sys.argv) > 2 else None]:
        x = inside((n,h,w,c), dt); wt = inside((c,k,k), dt, 1/k)
        L = [x.double().requires_grad_(), wt.double().requires_grad_()]
        z = F.conv2d(L[0].movedim(-1,1), L[1][:,None], None, s, p, 1, c).movedim(1,-1)
        dy = inside(z.shape, dt); res = inside(z.shape, dt); v = [inside((c,), torch.float32).abs_().add_(.5) if i == 1 else inside((c,), torch.float32) for i in range(4)]
        G = torch.autograd.grad(z, L, dy.double()); z = z.detach()
        g = (s,s,p,p); tag = (str(dt)[6:],n,h,w,c,k,s,p)
        outs = []
        for back in (0, 1):
            if back: os.environ["BACK"] = "1"
            else: os.environ.pop("BACK", None)
            o = [ops.depthwise_conv(x, wt, *[None]*6, *g, 0.0, 0), ops.depthwise_conv(x, wt, v[3].to(dt), v[0], v[1], v[2], v[3], res, *g, 1e-5, 1), ops.depthwise_conv(x, wt, None, v[0], v[1], None, None, None, *g, 1e-5, 4)]
            o += list(ops.depthwise_conv_backward(dy, x, wt, *g, True, True)); outs.append(o)
        if not all(torch.equal(a, b) for a, b in zip(*outs)): bad += 1; print("ORDER", tag)
        o = outs[0]; D = [t.double() for t in v]
        check(("plain",)+tag, o[0], z); check(("norm",)+tag, o[1], F.relu((z + v[3].to(dt).double() - D[0]) / (D[1]+1e-5).sqrt() * D[2] + D[3] + res.double()))
        check(("silu",)+tag, o[2], F.silu((z - D[0]) / (D[1]+1e-5).sqrt())); check(("dx",)+tag, o[3], G[0]); check(("dw",)+tag, o[4], G[1])
        print(tag, "ok so far" if not bad else "", flush=True)
print(f"{bad} bad of {ran}")
