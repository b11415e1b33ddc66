"""Models not in the suite: fuse (eval, train, bf16 autocast) and the graph pass (forced), against the unfused."""
import sys, os, copy, time, signal, traceback, warnings, re
warnings.filterwarnings("ignore")
sys.path[:0]=["/work/wt/models/perf/models","/work/wt/models/tests"]
import torch, torch.nn.functional as F
from torch import nn, Tensor
torch.set_num_threads(1)
import fusedops, coverage as C
from integration.test_inductor import without_codegen
import torch._dynamo
torch._dynamo.config.recompile_limit=64
import logging; logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL); logging.getLogger("transformers").setLevel(logging.ERROR)

def tensors(o, out=None):
    out=[] if out is None else out
    if isinstance(o,Tensor): out.append(o)
    elif isinstance(o,dict): [tensors(v,out) for v in o.values()]
    elif isinstance(o,(tuple,list)): [tensors(v,out) for v in o]
    return out

def run(model, call, mode="fp32"):
    model.zero_grad(set_to_none=True); torch.manual_seed(0)
    if mode=="amp":
        with torch.autocast("cpu",torch.bfloat16): o=call(model)
    else: o=call(model)
    ys=[t for t in tensors(o) if t.is_floating_point() and t.requires_grad]
    if not ys: raise RuntimeError("no differentiable output")
    g=torch.Generator().manual_seed(1)
    loss=sum((y.float()*torch.randn(y.shape,generator=g)).sum() for y in ys[:3] if torch.isfinite(y).all())
    loss.backward()
    return [y.detach().float() for y in ys[:3]], {n:p.grad for n,p in model.named_parameters() if p.grad is not None}

def rel(a,b):
    if a.shape!=b.shape: return float("inf")
    m=torch.isfinite(a)&torch.isfinite(b)
    if (torch.isfinite(a)!=torch.isfinite(b)).any(): return float("inf")
    if not m.any(): return 0.
    return float((a-b)[m].abs().max()/(a[m].abs().max()+1e-12))
def compare(ref, got):
    ya,ga=ref; yb,gb=got
    e=max((rel(a,b) for a,b in zip(ya,yb)),default=0.); 
    if len(ya)!=len(yb): e=float("inf")
    if set(ga)!=set(gb): return e,float("inf"),"grads of other params: "+str(sorted(set(ga)^set(gb))[:3])
    big=max((float(g.abs().max()) for g in ga.values()),default=1.) or 1.
    w=max(((float((ga[n]-gb[n]).abs().max())/big,n) for n in ga),default=(0.,""))
    return e,w[0],w[1]

MODES=os.environ.get("MODES","eval,train,amp,pass").split(",")
def one(name, build):
    t0=time.time(); line=[]; torch._dynamo.reset()
    try: model,call=build()
    except Exception as e: print(f"{name:38} NOT BUILT {type(e).__name__}: {str(e)[:120]}".replace("\n"," "),flush=True); return
    try:
        model.eval(); flops=C.product_flops(model,call)
    except Exception as e: print(f"{name:38} NOT RUN {type(e).__name__}: {str(e)[:140]}".replace("\n"," "),flush=True); return
    def step(label, f):
        try: r=f()
        except Exception as e:
            tb=traceback.extract_tb(e.__traceback__)[-1]
            line.append(f"{label} ERROR {type(e).__name__}: {str(e)[:160]} ({os.path.basename(tb.filename)}:{tb.lineno})".replace("\n"," ")); return
        line.append(r)
    fused=copy.deepcopy(model)
    try: report=fusedops.fuse(fused)
    except Exception as e: print(f"{name:38} FUSE ERROR {type(e).__name__} {e}",flush=True); return
    mods=dict(fused.named_modules()); tot=sum(flops.values())
    share=sum(f for n,f in flops.items() if n in mods and C.is_fused(mods[n]))/tot if tot else 1.
    norms=[m for m in fused.modules() if C.is_norm(m)]; ns=sum(map(C.is_fused,norms))/len(norms) if norms else 1.
    left={}
    for s in report.skipped: left[f"{s.kind}: {s.reason}"]=left.get(f"{s.kind}: {s.reason}",0)+1
    def cmp(mode,train):
        model.train(train); fused.train(train)
        a=run(model,call,mode); b=run(fused,call,mode); e,g,w=compare(a,b)
        te,tg=(1e-4,1e-3) if mode=="fp32" else (6e-2,6e-2)
        if mode!="fp32" and (e>te or g>tg):  # against fp32
            x=run(model,call,"fp32"); ea=compare(x,a); eb=compare(x,b)
            bad=eb[0]>2.5*ea[0]+1e-2 or eb[1]>2.5*ea[1]+1e-2
            return f"{mode} {e:.0e}/{g:.0e} (eager {ea[0]:.0e}/{ea[1]:.0e} ours {eb[0]:.0e}/{eb[1]:.0e})"+(" BAD "+w if bad else "")
        return f"{'train' if train else 'eval'}-{mode} {e:.0e}/{g:.0e}"+(f" BAD {w}" if e>te or g>tg or e!=e or g!=g else "")
    if "eval" in MODES: step("eval",lambda:cmp("fp32",False))
    if "train" in MODES: step("train",lambda:cmp("fp32",True))
    if "amp" in MODES: step("amp",lambda:cmp("amp",False))
    def gpass(train=False):
        model.train(train); ref=run(model,call)
        o=fusedops.inductor(force=True); torch._dynamo.reset()
        cm=torch.compile(lambda: call(model), backend=without_codegen(o["options"]))
        got=run(model,lambda m: cm()); e,g,w=compare(ref,got); r=o.report
        import collections
        k=",".join(f"{b}{a}" for a,b in collections.Counter(r.kinds()).items())
        un=[p for p in r.left if "cannot" in p.reason]
        gel=[p.reason for p in r.left if "nothing behind" not in p.reason and "pointwise code" not in p.reason]
        return f"pass {e:.0e}/{g:.0e} graphs {r.graphs} [{k or '-'}] left {len(r.left)}"+(f" BAD {w}" if e>1e-4 or g>1e-3 or e!=e or g!=g else "")+("".join(f" UNREAD {p.reason}" for p in un[:2]))
    if "pass" in MODES: step("pass",gpass)
    low=" LOW" if share<.95 or ns<.95 else ""
    bad=" <--" if any("BAD" in l or "ERROR" in l or "UNREAD" in l for l in line) else ""
    print(f"{name:38} flops {share:4.0%} norms {ns:4.0%} blocks {len(report.blocks)} pairs {len(report.pairs)}{low} | "+" | ".join(line)+f" | {time.time()-t0:.0f}s"+bad+("".join(f"\n      left {n} x {k}" for k,n in list(left.items())[:3]) if low else ""),flush=True)

def hf(kind, cls=None, **over):
    def build():
        import transformers
        from transformers import AutoConfig, AutoModel
        cc=type(AutoConfig.for_model(kind)); cfg=C.small_config(cc)
        for k,v in over.items():
            if k!="call": setattr(cfg,k,v)
        torch.manual_seed(0)
        K=getattr(transformers,cls) if cls else AutoModel
        model=K._from_config(cfg) if cls else K.from_config(cfg)
        model=model.float()
        with torch.no_grad():
            for p in model.parameters(): p.add_(0.02*torch.randn_like(p))
        main=model.main_input_name
        ids=torch.arange(3,27).view(2,12)
        if "call" in over: return model, over["call"](cfg)
        if main=="input_ids":
            kw={"input_ids":ids}
            if getattr(cfg,"is_encoder_decoder",False): kw["decoder_input_ids"]=ids.flip(1)
        elif main=="pixel_values":
            s=getattr(cfg,"image_size",None) or 64
            s=s if isinstance(s,int) else s[0]
            s=min(s,224)
            kw={"pixel_values":torch.randn(2,getattr(cfg,"num_channels",3),s,s)}
        elif main=="input_values": kw={"input_values":torch.randn(2,2000)}
        elif main=="input_features": kw={"input_features":torch.randn(2,getattr(cfg,"num_mel_bins",80),64)}
        else: raise ValueError(main)
        return model, lambda m: m(**kw)
    return build
def tm(name,**kw):
    def build():
        import timm
        torch.manual_seed(0); m=timm.create_model(name,num_classes=10,**kw)
        s=kw.get("img_size") or 64
        x=torch.randn(2,3,s,s); return m, lambda q:q(x)
    return build
MODELS={}
exec(open("/tmp/sweep/models.py").read())
only=sys.argv[1:]
class T(Exception): pass
def late(*a): raise T("more than 120 s")
signal.signal(signal.SIGALRM,late)
for n,b in MODELS.items():
    if only and not any(re.fullmatch(o.replace("*",".*"),n) for o in only): continue
    signal.alarm(150)
    try: one(n,b)
    except T as e: print(n,"TIMEOUT",flush=True)
    except Exception as e: print(n,"SWEEP ERROR",type(e).__name__,str(e)[:200],flush=True)
    finally: signal.alarm(0)
