# expected: 60 s (tests 35, timing 25; SANITIZE=1 adds 30). Thin GEMM kernels. Run in the repository root; PYTHONPATH holds fusedops.
export PYTHONPATH=$PYTHONPATH:${SITE:-/tmp/site}
timeout 200 python3 -m pytest -q -x -n 8 -p no:cacheprovider -m "not slow" tests/gemm/test_thin.py 2>&1 | tail -8
[ -n "$SANITIZE" ] && for tool in memcheck racecheck; do
  timeout 100 compute-sanitizer --tool $tool --error-exitcode 1 python3 scripts/sanitize --no-clusters thin 2>&1 | tail -2 &
done; wait
python3 - <<'P'
import math, os, random, torch, fusedops
torch.backends.cuda.matmul.allow_tf32 = False
r = random.Random(11)
def log(a, b): return int(math.exp(r.uniform(math.log(a), math.log(b))))
def timed(fs, rounds=7):
    """Interleaved medians, us; L2 is flushed by the size of the operands or by a fill."""
    flush = torch.empty(96 << 20, dtype=torch.int8, device="cuda"); t = [[] for _ in fs]
    for f in fs: f(); f()
    for _ in range(rounds):
        for i, f in enumerate(fs):
            flush.zero_(); a, b = torch.cuda.Event(True), torch.cuda.Event(True)
            torch.cuda._sleep(60000); a.record(); f(); b.record(); torch.cuda.synchronize(); t[i].append(a.elapsed_time(b) * 1e3)
    return [sorted(x)[len(x) // 2] for x in t]
FIX = [(2995003, 1, 2, "float32"), (1875597, 5, 3, "float32"), (319282, 399, 3, "bfloat16"), (1127831, 11, 64, "float16"), (298288, 10, 433, "float16"), (120264, 1, 15, "float32")]
cases = FIX + [(0, 0, 0, d) for d in ("float32", "bfloat16", "float16") for _ in range(8)]
out = open(os.path.join(os.environ.get("OUT", "/tmp"), "narrow.txt"), "w")
rf, rb = [], []
for i, (m, n, k, d) in enumerate(cases):
    dt = getattr(torch, d)
    if not m:
        few, other = log(1, 32), log(1, 256)
        n, k = (few, other) if r.random() < .5 else (other, few)
        m = min(log(1e5, 3e6), int(3e9 / (n + k)) // 4)
    x = torch.randn(m, k, device="cuda").to(dt); w = torch.randn(n, k, device="cuda").to(dt); b = torch.randn(n, device="cuda").to(dt)
    if i == 0: x = x.t().contiguous().t()
    dy = torch.randn(m, n, device="cuda").to(dt); bw = torch.ops.fusedops.linear_backward
    o, t = timed([lambda: fusedops.linear(x, w, b), lambda: torch.addmm(b, x, w.t())])
    ob, tb = timed([lambda: bw(dy, x, w, None, 0, True, True, True, False, False), lambda: (dy @ w, dy.t() @ x, dy.sum(0))])
    ks = [p.kernel.replace("thin ", "t.")[:22] for p in fusedops.explain(x, w, b, backward=True).products]
    size = x.element_size(); gbs = (m * (n + k)) * size / o / 1e3
    rf.append(t / o); rb.append(tb / ob)
    # dx and dw by themselves
    odx, odw = timed([lambda: bw(dy, x, w, None, 0, True, False, False, False, False), lambda: bw(dy, x, w, None, 0, False, True, False, False, False)], 5)
    line = f"{m}x{n}x{k} {d} fwd {o:.0f}us {t/o:.2f} {gbs:.0f}GB/s bwd {ob:.0f} {tb/ob:.2f} dx {odx:.0f} dw {odw:.0f} | {'; '.join(ks)}"
    print(line); print(line, file=out)
    # Forward through the kernel that would run instead: WGMMA where rows are whole, else of sm80 by its table's index.
    from fusedops import _C
    gc, fam = torch.ops.fusedops_tuning.gemm_with_config, _C.enums()["family"].index
    if size == 2 and n % 8 == 0 and k % 8 == 0:
        c, _ = _C.select_config(m, n, k, d); tries = [(c["name"], c["family"], c["index"], c["splits"], c["swizzle"])]
    else:
        tries = [(f"sm80 {i}", "sm80", i, 1, 1) for i in ((0, 5) if size == 2 else (10, 11))]
    for what, f, i, splits, swizzle in tries:
        try:
            u, = timed([lambda: gc(x, w.t(), b, 0, fam(f), i, splits, swizzle, 0)], 3); said = f"{u:.0f} us"
        except RuntimeError as error:
            said = "refused: " + str(error).splitlines()[0][-60:]
        print(f"   instead {what}: {said}", file=out)
        if "refused" not in said and u < o: print(f"   instead {what}: {said} (faster than what ran)")
g = lambda v: math.exp(sum(map(math.log, v)) / len(v))
print(f"fwd geomean {g(rf):.3f} worst {min(rf):.3f}; bwd geomean {g(rb):.3f} worst {min(rb):.3f}")
P
