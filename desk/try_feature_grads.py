import torch, fusedops
torch.ops.load_library("/tmp/emulated.so")
ops = torch.ops.fusedops
torch.manual_seed(0)
for T in (torch.bfloat16, torch.float16):
  for R, C, F in ((700, 64, 6), (300, 256, 3), (257, 128, 10), (5, 32, 1), (513, 384, 9), (256, 64, 8)):
    sums = torch.randn(R, C); aff = torch.randn(C, 2); dense = torch.randn(C, 2); m = torch.randn(R, 4); m[:, 0] = torch.randint(0, 4, (R,)).float()
    fw = torch.randn(2, C, 8).to(T); feat = torch.randn(R, F).to(T)
    feat[m[:, 0] == 0] = float("nan"); m[m[:, 0] == 0] = 0
    got = ops.edge_feature_grads(sums, aff, dense, m, fw, feat)
    W = torch.cat([fw[1], fw[0][:, 6:8]], 1).double()[:, :F]; Wx = fw[0][:, :3].double()
    f0 = torch.where(m[:, :1] > 0, feat.double(), 0.0)
    du = aff[:, 0].double() * sums.double() + m[:, :1].double() * dense[:, 0].double() + dense[:, 1].double() * (m[:, :1].double() * (f0 @ W.T) + m[:, 1:].double() @ Wx.T)
    want = du @ W
    err = ((got.double() - want).abs().max() / want.abs().max()).item()
    got0 = ops.edge_feature_grads(sums, None, None, None, fw, feat); want0 = sums.double() @ W
    err0 = ((got0.double() - want0).abs().max() / want0.abs().max()).item()
    # first grads
    for planes in (1, 2):
        P = torch.randn(C + 32, 16); w = fw[:planes]
        g = ops.edge_first_grads(P, aff, dense, w)
        col = w.double().transpose(0, 1).flatten(1)
        found = P[:C].double() * aff[:, :1].double() + dense[:, :1].double() * P[C + 16].double() + dense[:, 1:].double() * (col @ P[C:C + 8 * planes].double())
        wantg = torch.cat([found[:, :3] + found[:, 3:6], found[:, 8:], found[:, 6:8], torch.zeros(C, 3)], 1)
        e = ((g.double() - wantg).abs().max() / wantg.abs().max()).item()
        g0 = ops.edge_first_grads(P, None, None, w); w0 = P[:C].double(); w0 = torch.cat([w0[:, :3] + w0[:, 3:6], w0[:, 8:], w0[:, 6:8], torch.zeros(C, 3)], 1)
        e = max(e, ((g0.double() - w0).abs().max() / w0.abs().max()).item())
        assert e < 5e-3, e
    print(T, R, C, F, f"{err:.1e} {err0:.1e} {e:.1e}", got.shape)
    assert err < 5e-3 and err0 < 5e-3
