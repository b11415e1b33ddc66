"""Ways of layers below the bars: us, cold L2 (sets of inputs), CUDA graphs, interleaved."""
import sys, time, collections, torch, fusedops
from fusedops import _C
from fusedops._timing import timing
from fusedops._tuning import measure
from fusedops._tuning.names import FAMILIES, plan_text
from fusedops._tuning.plan_store import gpu_key
from fusedops.bench.suites.conv.layers import LAYERS, by_torch, make_inputs
from fusedops.bench.suites.conv.cudnn_peer import cudnn_layer
from fusedops.bench.suites.conv.suite import as_pass, ours_layer
from fusedops.ops import conv as C, conv_graph as G
from fusedops.ops.conv_problem import conv_problem
ops = torch.ops.fusedops; torch.backends.cudnn.benchmark = True
DEV = torch.device("cuda"); KEY = gpu_key(DEV); T0 = time.time(); CODES = fusedops._core.activation.CODES
print(torch.cuda.get_device_name(), "graphs", G.is_installed())
def us(calls, sets, rounds=7, replay=200.0):
    """Each call takes a set."""
    reps = {}
    for name, f in calls.items():
        try:
            if f(*sets[0]) is None: continue
            torch.cuda.synchronize()
            reps[name] = timing.GraphReplay(f, sets, timing._side_stream(DEV), replay)
        except Exception as e: print("  no", name, repr(e)[:90])
    return {k: v.us for k, v in timing.interleave(reps, rounds, DEV, 0.0).items()}
def text(t, best=99): return " ".join(f"{k} {v:.1f}" for k, v in sorted(t.items(), key=lambda i: i[1])[:best])
if sys.argv[1] == "infer":
    want = ("N64_C96_H56_O24", "N64_C2048_H7", "N64_C512_H28_O128", "N64_C1024_H14", "N64_C480_H14_O80", "N64_C80_H14", "N64_C512_H7_O2048", "N64_C256_H14_O1024", "N64_C128_H28_O128_k3", "N64_C256_H14_O256_k3", "N64_C512_H7_O512_k3")
    for layer in (l for l in LAYERS if l.name.startswith(want)):
        first = make_inputs(layer, torch.bfloat16, "infer", DEV)
        sets = [first, *(make_inputs(layer, torch.bfloat16, "infer", DEV) for _ in range(timing.num_sets(timing.num_bytes(first), DEV) - 1))]
        x, w = first[:2]; prob = conv_problem("x", x, w, layer.stride, layer.padding, 1, layer.groups); code = CODES[layer.activation]
        def fused(s): return C.Fused(s[0], s[1], None, C.Norm(*s[2:6]), s[6] if layer.residual else None, prob, code, 1e-5)
        def inside(*s): c = fused(s); return c.graph(c.weight, G.Behind(None, *c.norm, 1e-5))
        def formed(*s):
            c = fused(s); r, _ = ops.batch_norm_fold(c.norm.weight[:, None], None, None, c.norm.var, None, None, 1e-5)
            return c.graph(c.weight, G.Behind(None, c.norm.mean, None, r.flatten(), c.norm.bias, 0.0))
        def fold(*s): c = fused(s); f, sh = c.folded(); return c.graph(f, G.Behind(sh))
        def two(*s): return fused(s).graph(s[1], G.Behind(scale=s[-2], shift=s[-1]))
        def pw(*s):
            c = fused(s); return ops.pointwise_conv(C.channels_behind(s[0]), s[1].flatten(1), None, *c.norm, None if c.residual is None else C.channels_behind(c.residual), 1e-5, code)
        def gemm(*s): f, sh = ops.batch_norm_fold(s[1].flatten(1), None, *s[2:6], 1e-5); return ops.linear(C.channels_behind(s[0]), f, sh, code, False)
        def only(*s): return ops.linear(C.channels_behind(s[0]), s[1].flatten(1), HB, code, False)
        HB = first[5].bfloat16()
        ours, peer = as_pass(ours_layer(layer, False), "infer"), cudnn_layer(layer, "infer", DEV) if G.is_installed() else None
        calls = {"ours": ours, "peer": peer, "inside": inside, "formed": formed, "fold": fold, "scaleshift": two, "foldonly": lambda *s: ops.batch_norm_fold(s[1].flatten(1), None, *s[2:6], 1e-5)[0]}
        if layer.kernel == 1:
            if layer.channels <= 512: calls["pw"] = pw
            if not layer.residual: calls |= {"gemm": gemm, "gemmonly": only}
        if not G.is_installed(): calls = {k: v for k, v in calls.items() if k not in ("peer", "inside", "formed", "fold", "scaleshift")}
        with torch.no_grad(): print(f"{layer.name}: {text(us(calls, sets))}", flush=True)
        if layer.kernel == 1 and not layer.residual and time.time() - T0 < 70:
            m, n, k = layer.batch * layer.out_side ** 2, layer.out, layer.channels
            try:
                _C.start_recording(); ops.linear(C.channels_behind(x), w.flatten(1), HB, code, False); problem = _C.stop_recording()[0][0]
                found = measure.candidates(problem, KEY)
                seen, pool = set(), []
                for c in found:
                    if measure.kernel_of(c) not in seen: seen.add(measure.kernel_of(c)); pool.append(c)
                runs = {plan_text(c).replace(" ", "_"): (lambda call: lambda *s: call(C.channels_behind(s[0]).reshape(m, k), s[1].flatten(1).t(), HB))(measure.our_call(problem, c)) for c in pool[:24]}
                with torch.no_grad(): t = us(runs, sets, 3)
                now = plan_text(_C.plan_gemm(problem, KEY.capability, KEY.sm_count)["selected"]).replace(" ", "_")
                print(f"  now {now} {t.get(now, 0):.1f} best: {text(t, 6)}", flush=True)
            except Exception as e: print("  ", repr(e)[:200])
else:
    def short(n):
        n = n.replace("fusedops::", "").replace("void ", "").replace("cutlass", "ct").replace("at::native::", "").replace("batch_norm_", "bn_")
        return n.split("<")[0].split("(")[0][:26]
    want = ("N64_C2048_H7", "N64_C1024_H14", "N64_C480_H14_O80", "N64_C512_H28_O128", "N64_C256_H14_O256_k3", "N64_C512_H7_O512_k3", "N64_C512_H7_O2048", "N64_C320_H7", "N64_C80_H14")
    for layer in (l for l in LAYERS if l.name.startswith(want)):
        inputs = make_inputs(layer, torch.bfloat16, "step", DEV)
        who = {"ours": as_pass(ours_layer(layer, True), "step"), "eager": as_pass(by_torch(layer, True), "step")}
        for name, call in who.items():
            for _ in range(4): call(*inputs)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
                for _ in range(5): call(*inputs)
                torch.cuda.synchronize()
            found = collections.OrderedDict()
            es = sorted((e for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA), key=lambda e: e.time_range.start)
            per = len(es) // 5
            line = [(short(e.name), e.device_time) for e in es[-per:]]
            print(f"{layer.name} {name} {sum(e.device_time for e in es) / 5:.0f}: " + ", ".join(f"{k} {v:.1f}" for k, v in line if v > .8), flush=True)
    # batch norm of rows x channels: one op, passes
    for rows, ch in ((3136, 512), (3136, 2048), (3136, 1280), (12544, 80), (12544, 256), (12544, 480), (50176, 128), (12544, 1024)):
        def make():
            x, dy, r = (torch.randn(rows, ch, device=DEV).bfloat16() for _ in range(3)); g, b = torch.rand(2, ch, device=DEV)
            return x, dy, g, b, torch.zeros(ch, device=DEV), torch.ones(ch, device=DEV)
        first = make(); sets = [first, *(make() for _ in range(timing.num_sets(timing.num_bytes(first), DEV) - 1))]
        relu = CODES["relu"]
        def train(x, dy, g, b, m, v): return ops.batch_norm_train_(x, g, b, None, None, m, v, .1, 1e-5, relu)[0]
        def passes(x, dy, g, b, m, v):
            me, va = ops.batch_norm_statistics_(x, None, m, v, .1); return ops.batch_norm_apply(x, me, va, g, b, None, 1e-5, relu)
        def back(x, dy, g, b, m, v): return ops.batch_norm_train_backward(dy, x, m, v, g, b, None, 1e-5, relu, False)[0]
        def back_passes(x, dy, g, b, m, v):
            s, _ = ops.batch_norm_sums(dy, x, m, v, g, b, None, 1e-5, relu, False); return ops.batch_norm_backward(dy, x, m, v, g, b, None, s, None, 1e-5, relu, False)[0]
        print(f"bn {rows}x{ch}: " + text(us({"train": train, "passes": passes, "back": back, "back_passes": back_passes}, sets)), flush=True)
