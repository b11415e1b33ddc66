# Expected seconds: <= 150 (LIMIT). One GPU. Six models in a process each compile at once, then wait for each other and measure one by one, on a quiet host. Models that are not in the suite: eager, compile whole, fuse, graph pass; wall and GPU-busy ms, peak MiB, errors of the loss. Details and kernels: $OUT/models_unseen/.
D=$OUT/models_unseen; mkdir -p $D; export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2 PYTHONWARNINGS=ignore TORCHINDUCTOR_COMPILE_THREADS=3; LIMIT=${LIMIT:-150}; S0=$SECONDS
cat > /tmp/munseen.py <<'P'
import collections, contextlib, fcntl, gc, re, sys, time, torch
from torch import nn
D, name = sys.argv[1], sys.argv[2]; tiny = len(sys.argv) > 3; dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
import fusedops, fusedops.bench.suites.models.contenders as C
from fusedops.bench.suites.models.spec import Model, tokens, dtype_of
from fusedops.bench.suites.models import huggingface as H
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
sync = torch.cuda.synchronize if dev.type == "cuda" else lambda: None
def lm(kind, cls="AutoModelForCausalLM", vocab=32000, batch=4, length=1024, **sizes):
    if tiny: sizes = {k: (64 if k in ("hidden_size", "n_embed", "conv_dim_") else 128 if k == "intermediate_size" else 4 if "head" in k else v) for k, v in sizes.items()}; vocab, batch, length = 96, 2, 16
    def loss(m, x): return m(input_ids=x, labels=x).loss
    return Model(name, lambda t: H.build(cls, kind, {"vocab_size": vocab, **sizes}), lambda m, t: (tokens(batch, length, vocab),), loss, lambda m, x: m(input_ids=x).logits, "transformers")
def vision(kind, size=224, batch=64, **o):
    import timm, torch.nn.functional as F
    if tiny: batch = 1
    return Model(name, lambda t: timm.create_model(kind, **o), lambda m, t: (torch.randn(batch, 3, size, size, dtype=dtype_of(m)), torch.randint(1000, (batch,))), lambda m, x, y: F.cross_entropy(m(x), y), lambda m, x, y: m(x), "timm")
def encoder(d=1024, heads=16, depth=4, batch=16, length=512):
    if tiny: d, heads, depth, batch, length = 64, 4, 1, 2, 16
    mask = torch.zeros(batch, length, dtype=torch.bool, device=dev); mask[0, -5:] = True
    class E(nn.Module):
        def __init__(s): super().__init__(); s.e = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, heads, 4 * d, 0.0, "gelu", batch_first=True, norm_first=True), depth, enable_nested_tensor=False); s.h = nn.Linear(d, 1000)
        def forward(s, x): return s.h(s.e(x, src_key_padding_mask=mask).mean(1))
    return Model(name, lambda t: E(), lambda m, t: (torch.randn(batch, length, d, dtype=dtype_of(m)), torch.randint(1000, (batch,))), lambda m, x, y: nn.functional.cross_entropy(m(x), y), lambda m, x, y: m(x))
def speech(batch=8, frames=80000):
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC
    z = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128, conv_dim=(32,) * 7, num_conv_pos_embeddings=16) if tiny else dict(hidden_size=1024, num_hidden_layers=4, num_attention_heads=16, intermediate_size=4096, do_stable_layer_norm=True, feat_extract_norm="layer")
    if tiny: batch, frames = 1, 8000
    c = Wav2Vec2Config(mask_time_prob=0.0, layerdrop=0.0, hidden_dropout=0.0, activation_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0, **z)
    return Model(name, lambda t: Wav2Vec2ForCTC(c), lambda m, t: (torch.randn(batch, frames, dtype=dtype_of(m)),), lambda m, x: m(x).logits.float().square().mean(), lambda m, x: m(x).logits, "transformers")
K = {
 "gpt_neox": lambda: lm("gpt_neox", hidden_size=2048, num_hidden_layers=4, num_attention_heads=16, intermediate_size=8192, vocab=50304),
 "bloom": lambda: lm("bloom", hidden_size=2048, n_layer=4, n_head=16, vocab=50304, hidden_dropout=0.0, attention_dropout=0.0),
 "qwen2": lambda: lm("qwen2", hidden_size=1536, num_hidden_layers=4, num_attention_heads=12, num_key_value_heads=2 if not tiny else 4, intermediate_size=8960, vocab=151936, batch=2),
 "olmo2": lambda: lm("olmo2", hidden_size=2048, num_hidden_layers=4, num_attention_heads=16, intermediate_size=8192, vocab=100352),
 "phi": lambda: lm("phi", hidden_size=2048, num_hidden_layers=4, num_attention_heads=32, intermediate_size=8192, vocab=51200, resid_pdrop=0.0),
 "gemma3": lambda: lm("gemma3_text", hidden_size=1152, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=1 if not tiny else 4, head_dim=256, intermediate_size=6912, vocab=65536),
 "deberta": lambda: lm("deberta-v2", "AutoModelForMaskedLM", hidden_size=1024, num_hidden_layers=3, num_attention_heads=16, intermediate_size=4096, batch=8, length=512, relative_attention=True, pos_att_type=["p2c", "c2p"], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
 "wav2vec2": speech, "encoder": encoder,
 "deit3": lambda: vision("deit3_base_patch16_224", depth=4), "beitv2": lambda: vision("beitv2_base_patch16_224", depth=4),
}
L = K[name]().load(False, torch.bfloat16, dev); o = fusedops.inductor(**({"force": True} if dev.type == "cpu" else {})); C._options = lambda k: o if k == "inductor" else {}
@contextlib.contextmanager
def alone():
    with open("/tmp/munseen.lock", "w") as f: fcntl.flock(f, fcntl.LOCK_EX); yield; sync()
short = lambda k: re.sub(r"at::native::|fusedops::|void |\(anonymous namespace\)::|cutlass::|gemm::|unsigned ", "", k)
calls, R, losses = {}, {}, {}
for v in ("eager", "compile_whole", "fuse", "inductor", "fuse_compile"):
    try:
        calls[v] = C.make(v, L, "step")
        for _ in range(3): losses[v] = float(calls[v](*L.data)["loss"])
    except Exception as e: print(f"{name} {v}: {type(e).__name__}: {str(e)[:150]}".replace("\n", " ")); calls.pop(v, None)
sync(); open(f"{D}/ready.{name}", "w").close()
import glob, os
while len(glob.glob(D + "/ready.*")) < int(os.environ.get("WAIT_FOR", 1)) and time.time() < float(os.environ.get("WAIT_TILL", 0)): time.sleep(0.3)
with alone():
    times = collections.defaultdict(list)
    for _ in range(9 if dev.type == "cuda" else 1):
        for v, f in calls.items():
            f(*L.data); sync(); t = time.perf_counter(); f(*L.data); f(*L.data); sync(); times[v].append((time.perf_counter() - t) * 500)
    for v, f in calls.items():
        gc.collect(); peak = 0
        if dev.type == "cuda": b = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats(); f(*L.data); sync(); peak = (torch.cuda.max_memory_allocated() - b) / 2**20
        with profile(activities=[ProfilerActivity.CUDA if dev.type == "cuda" else ProfilerActivity.CPU]) as p: [f(*L.data) for _ in range(3)]; sync()
        us, n, end = collections.Counter(), collections.Counter(), 0.0
        for e in sorted((e for e in p.events() if e.device_type == DeviceType.CUDA), key=lambda e: e.time_range.start):
            us[e.name] += max(e.time_range.end - max(e.time_range.start, end), 0); end = max(end, e.time_range.end); n[e.name] += 1
        R[v] = sorted(times[v])[len(times[v]) // 2], sum(us.values()) / 3e3 or 1.0, peak
        open(f"{D}/{name}.{v}.kernels.txt", "w").write("".join(f"{x/3:9.1f} {n[k]//3:4d} {short(k)[:200]}\n" for k, x in us.most_common()))
open(f"{D}/{name}.report.txt", "w").write(str(o.report))
print("ROW", name, " ".join(f"{v} {a:.3f} {b:.3f} {c:.0f}" for v, (a, b, c) in R.items()), "losses", " ".join(f"{x:.5f}" for x in losses.values()), flush=True)
P
cat > /tmp/munseen_table.py <<'P'
import math, sys
G = {}; print("model     wall ms: eager compile fuse pass fuse+compile | busy ms: the same | best pass fuse by wall, by busy | memory MiB compile fuse pass")
for l in open(sys.argv[1]):
    w = l.split()
    if not w or w[0] != "ROW": print(l.strip()[:150]); continue
    r = {}; i = 2
    while w[i] != "losses": r[w[i]] = tuple(map(float, w[i + 1:i + 4])); i += 4
    if not {"eager", "compile_whole", "fuse", "inductor"} <= set(r): print(l.strip()[:150]); continue
    q = []
    for k in (0, 1):
        e, c, f, p = (r[v][k] for v in ("eager", "compile_whole", "fuse", "inductor")); z = r.get("fuse_compile", r["inductor"])[k]; q += [min(e, c) / min(f, p, z), c / min(p, z), e / f]
    for k, x in zip(("best wall", "pass wall", "fuse wall", "best busy", "pass busy", "fuse busy"), q): G.setdefault(k, []).append(x)
    print(f"{w[1]:9}", *(f"{r[v][0]:6.2f}" for v in r), "|", *(f"{r[v][1]:6.2f}" for v in r), "|", *(f"{x:.3f}" for x in q), "|", *(f"{r[v][2]:.0f}" for v in ("compile_whole", "fuse", "inductor")), "|", *w[i + 1:])
for k, x in G.items(): print(f"{k}: geomean {math.exp(sum(map(math.log, x)) / len(x)):.3f}, lowest {min(x):.3f} of {len(x)}")
P
M=${MODELS:-deit3 encoder gpt_neox beitv2 phi wav2vec2}; rm -f $D/ready.* $D/rows.txt; export WAIT_FOR=$(echo $M | wc -w) WAIT_TILL=$(($(date +%s)+LIMIT-45))
for m in $M; do ( TORCHINDUCTOR_CACHE_DIR=/tmp/munseen_$m timeout -k 2 $LIMIT python3 /tmp/munseen.py $D $m > $D/$m.txt 2>&1 || echo "$m rc $?: $(grep -v -i warn $D/$m.txt | tail -n 1 | cut -c1-120)" >> $D/rows.txt; touch $D/ready.$m; grep -E "^ROW|Error" $D/$m.txt | tail -n 3 >> $D/rows.txt ) & done; wait; python3 /tmp/munseen_table.py $D/rows.txt
