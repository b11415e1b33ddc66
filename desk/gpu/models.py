# ---- by hand, as users write ----
class Attn(nn.Module):
    def __init__(s,d,h,bias=True,kv=None):
        super().__init__(); s.h=h; s.q=nn.Linear(d,d,bias=bias); s.k=nn.Linear(kv or d,d,bias=bias); s.v=nn.Linear(kv or d,d,bias=bias); s.o=nn.Linear(d,d,bias=bias)
    def forward(s,x,c=None,causal=False):
        c=x if c is None else c
        q,k,v=(t.unflatten(-1,(s.h,-1)).transpose(1,2) for t in (s.q(x),s.k(c),s.v(c)))
        return s.o(F.scaled_dot_product_attention(q,k,v,is_causal=causal).transpose(1,2).flatten(2))
class DiTBlock(nn.Module):
    def __init__(s,d):
        super().__init__(); s.n1=nn.LayerNorm(d,elementwise_affine=False,eps=1e-6); s.n2=nn.LayerNorm(d,elementwise_affine=False,eps=1e-6); s.a=Attn(d,4)
        s.mlp=nn.Sequential(nn.Linear(d,4*d),nn.GELU(approximate="tanh"),nn.Linear(4*d,d)); s.ada=nn.Sequential(nn.SiLU(),nn.Linear(d,6*d))
    def forward(s,x,c):
        a,b,g,a2,b2,g2=s.ada(c).chunk(6,dim=1)
        x=x+g.unsqueeze(1)*s.a(s.n1(x)*(1+b.unsqueeze(1))+a.unsqueeze(1))
        return x+g2.unsqueeze(1)*s.mlp(s.n2(x)*(1+b2.unsqueeze(1))+a2.unsqueeze(1))
class DiT(nn.Module):
    def __init__(s):
        super().__init__(); s.p=nn.Conv2d(4,48,2,2); s.t=nn.Sequential(nn.Linear(32,48),nn.SiLU(),nn.Linear(48,48)); s.b=nn.ModuleList(DiTBlock(48) for _ in range(2)); s.f=nn.LayerNorm(48,elementwise_affine=False); s.l=nn.Linear(48,16)
    def forward(s,x,t):
        x=s.p(x).flatten(2).transpose(1,2); c=s.t(t)
        for b in s.b: x=b(x,c)
        return s.l(s.f(x))
class Parallel(nn.Module):
    """GPT-J/PaLM: one norm, attention and SwiGLU beside each other, packed in one projection."""
    def __init__(s,d=48,h=4,f=96):
        super().__init__(); s.d,s.f,s.h=d,f,h; s.norm=nn.RMSNorm(d); s.inp=nn.Linear(d,3*d+2*f,bias=False); s.ao=nn.Linear(d,d,bias=False); s.fo=nn.Linear(f,d,bias=False)
    def forward(s,x):
        q,k,v,ff=s.inp(s.norm(x)).split((s.d,s.d,s.d,2*s.f),dim=-1)
        q,k,v=(t.unflatten(-1,(s.h,-1)).transpose(1,2) for t in (q,k,v))
        y=F.scaled_dot_product_attention(q,k,v,is_causal=True).transpose(1,2).flatten(2)
        a,g=ff.chunk(2,-1)
        return x+s.ao(y)+s.fo(F.silu(g)*a)
class LoRA(nn.Module):
    def __init__(s,base,r=4): super().__init__(); s.base=base; s.a=nn.Linear(base.in_features,r,bias=False); s.b=nn.Linear(r,base.out_features,bias=False)
    def forward(s,x): return s.base(x)+s.b(s.a(x))*2.0
class Conformer(nn.Module):
    def __init__(s,d=48):
        super().__init__(); ff=lambda: nn.Sequential(nn.LayerNorm(d),nn.Linear(d,4*d),nn.SiLU(),nn.Dropout(.1),nn.Linear(4*d,d),nn.Dropout(.1))
        s.f1,s.f2=ff(),ff(); s.n=nn.LayerNorm(d); s.a=nn.MultiheadAttention(d,4,batch_first=True,dropout=.1); s.cn=nn.LayerNorm(d); s.pw=nn.Conv1d(d,2*d,1); s.dw=nn.Conv1d(d,d,7,padding=3,groups=d); s.bn=nn.BatchNorm1d(d); s.pw2=nn.Conv1d(d,d,1); s.last=nn.LayerNorm(d)
    def forward(s,x):
        x=x+.5*s.f1(x); n=s.n(x); x=x+s.a(n,n,n,need_weights=False)[0]
        y=F.glu(s.pw(s.cn(x).transpose(1,2)),dim=1); x=x+s.pw2(F.silu(s.bn(s.dw(y)))).transpose(1,2)
        return s.last(x+.5*s.f2(x))
class MoE(nn.Module):
    def __init__(s,d=48,e=4):
        super().__init__(); s.gate=nn.Linear(d,e); s.ex=nn.ModuleList(nn.Sequential(nn.Linear(d,2*d),nn.GELU(),nn.Linear(2*d,d)) for _ in range(e))
    def forward(s,x):
        x=x.flatten(0,-2); w,i=s.gate(x).softmax(-1).topk(2); y=torch.zeros_like(x)
        for e,m in enumerate(s.ex):
            r,c=torch.where(i==e); y=y.index_add(0,r,m(x[r])*w[r,c,None])
        return y
class DeepFM(nn.Module):
    def __init__(s):
        super().__init__(); s.e=nn.Embedding(100,8); s.l=nn.Embedding(100,1); s.m=nn.Sequential(*[l for a,b in ((80,64),(64,32)) for l in (nn.Linear(a,b),nn.BatchNorm1d(b),nn.ReLU(),nn.Dropout(.2))],nn.Linear(32,1))
    def forward(s,x):
        e=s.e(x); fm=.5*((e.sum(1)**2)-(e**2).sum(1)).sum(1,keepdim=True); return (s.l(x).sum(1)+fm+s.m(e.flatten(1))).sigmoid()
class DCN(nn.Module):
    def __init__(s): super().__init__(); s.w=nn.ModuleList(nn.Linear(40,40) for _ in range(3)); s.d=nn.Sequential(nn.Linear(40,64),nn.ReLU(),nn.Linear(64,40),nn.ReLU()); s.o=nn.Linear(80,1)
    def forward(s,x):
        y=x
        for w in s.w: y=x*w(y)+y
        return s.o(torch.cat((y,s.d(x)),-1))
class LSTMLM(nn.Module):
    def __init__(s): super().__init__(); s.e=nn.Embedding(90,32); s.r=nn.LSTM(32,48,2,batch_first=True); s.n=nn.LayerNorm(48); s.o=nn.Linear(48,90)
    def forward(s,x): return s.o(s.n(s.r(s.e(x))[0]))
class VAE(nn.Module):
    def __init__(s): super().__init__(); s.e=nn.Sequential(nn.Linear(64,128),nn.ReLU(),nn.Linear(128,64),nn.ReLU()); s.mu=nn.Linear(64,8); s.lv=nn.Linear(64,8); s.d=nn.Sequential(nn.Linear(8,64),nn.ReLU(),nn.Linear(64,64),nn.Sigmoid())
    def forward(s,x): h=s.e(x); m,l=s.mu(h),s.lv(h); z=m+torch.exp(.5*l)*torch.randn_like(l); return s.d(z),m,l
class NeRF(nn.Module):
    def __init__(s,d=64): super().__init__(); s.l=nn.ModuleList([nn.Linear(39,d)]+[nn.Linear(d+39 if i==2 else d,d) for i in range(1,5)]); s.a=nn.Linear(d,1); s.f=nn.Linear(d,d); s.v=nn.Linear(d+27,d//2); s.rgb=nn.Linear(d//2,3)
    def forward(s,x,v):
        h=x
        for i,l in enumerate(s.l):
            if i==2: h=torch.cat((x,h),-1)
            h=F.relu(l(h))
        a=s.a(h); h=F.relu(s.v(torch.cat((s.f(h),v),-1))); return torch.cat((s.rgb(h).sigmoid(),a),-1)
class Siren(nn.Module):
    def __init__(s): super().__init__(); s.l=nn.ModuleList((nn.Linear(2,64),nn.Linear(64,64),nn.Linear(64,1)))
    def forward(s,x):
        for l in s.l[:-1]: x=torch.sin(30*l(x))
        return s.l[-1](x)
class ResMLP(nn.Module):
    def __init__(s,d=64): super().__init__(); s.b=nn.ModuleList(nn.ModuleDict(dict(n=nn.LayerNorm(d),a=nn.Linear(d,2*d),c=nn.Linear(2*d,d))) for _ in range(3)); s.o=nn.Linear(d,5)
    def forward(s,x):
        for b in s.b: x=x+F.dropout(b["c"](F.leaky_relu(b["a"](b["n"](x)),.1)),.1,s.training)
        return s.o(x)
class CrossPerceiver(nn.Module):
    def __init__(s,d=48): super().__init__(); s.z=nn.Parameter(torch.randn(1,6,d)); s.c=Attn(d,4,kv=20); s.a=Attn(d,4); s.n=nn.ModuleList(nn.LayerNorm(d) for _ in range(3)); s.nk=nn.LayerNorm(20); s.m=nn.Sequential(nn.Linear(d,2*d),nn.GELU(),nn.Linear(2*d,d))
    def forward(s,x):
        z=s.z.expand(x.shape[0],-1,-1); z=z+s.c(s.n[0](z),s.nk(x)); z=z+s.a(s.n[1](z)); return z+s.m(s.n[2](z))
class GRN(nn.Module):
    """gated residual network of temporal fusion transformers"""
    def __init__(s,d=32): super().__init__(); s.a=nn.Linear(d,d); s.b=nn.Linear(d,d); s.g=nn.Linear(d,2*d); s.n=nn.LayerNorm(d); s.c=nn.Linear(8,d,bias=False)
    def forward(s,x,c): return s.n(x+F.glu(s.b(F.elu(s.a(x)+s.c(c))),-1).repeat(1,1,2)+F.glu(s.g(s.b(F.elu(s.a(x)+s.c(c))))))
class Shared(nn.Module):
    """ALBERT-like: one layer, several times; tied last layer"""
    def __init__(s,d=48): super().__init__(); s.e=nn.Embedding(70,d); s.l=nn.TransformerEncoderLayer(d,4,96,dropout=.1,batch_first=True,activation="gelu"); s.o=nn.Linear(d,70,bias=False); s.o.weight=s.e.weight
    def forward(s,x):
        h=s.e(x)
        for _ in range(3): h=s.l(h)
        return F.cross_entropy(s.o(h).flatten(0,1),x.flatten()),h
def own(make,*xs): 
    def build():
        torch.manual_seed(0); m=make(); d=[x() for x in xs]; return m, lambda q:q(*d)
    return build
R=lambda *s: (lambda: torch.randn(*s)); I=lambda n,*s:(lambda: torch.randint(n,s))
MODELS|={
 "own/dit":own(DiT,R(2,4,8,8),R(2,32)), "own/parallel":own(lambda:nn.Sequential(Parallel(),Parallel()),R(2,10,48)),
 "own/lora":own(lambda:nn.Sequential(LoRA(nn.Linear(32,64)),nn.GELU(),LoRA(nn.Linear(64,32))),R(4,9,32)),
 "own/conformer":own(Conformer,R(2,14,48)), "own/moe":own(MoE,R(2,10,48)), "own/deepfm":own(DeepFM,I(100,16,10)), "own/dcn":own(DCN,R(16,40)),
 "own/lstm":own(LSTMLM,I(90,2,12)), "own/vae":own(VAE,R(8,64)), "own/nerf":own(NeRF,R(32,39),R(32,27)), "own/siren":own(Siren,R(32,2)), "own/resmlp":own(ResMLP,R(8,64)),
 "own/perceiver":own(CrossPerceiver,R(2,17,20)), "own/shared":own(Shared,I(70,2,12)), "own/grn":own(GRN,R(2,6,32),R(2,6,8)),
 "own/torch_transformer":own(lambda:nn.Transformer(48,4,2,2,96,.1,batch_first=True),R(2,9,48),R(2,7,48)),
 "own/torch_encoder_prenorm":own(lambda:nn.TransformerEncoder(nn.TransformerEncoderLayer(48,4,96,.1,F.gelu,batch_first=True,norm_first=True),2,nn.LayerNorm(48)),R(2,9,48)),
 "own/torch_decoder":own(lambda:nn.TransformerDecoder(nn.TransformerDecoderLayer(48,4,96,.0,batch_first=True,norm_first=True,bias=False),2),R(2,9,48),R(2,7,48)),
}
for k in "falcon gpt_neox gptj bloom mpt phi stablelm cohere olmo2 starcoder2 granite granitemoe deepseek_v3 qwen2_moe mamba2 gemma3_text glm4 nemotron".split(): MODELS[f"hf/{k}"]=hf(k)
for k in "electra deberta-v2 albert mpnet roformer convbert funnel xlnet esm layoutlm canine modernbert".split(): MODELS[f"hf/{k}"]=hf(k)
for k in "bart mt5 pegasus marian switch_transformers".split(): MODELS[f"hf/{k}"]=hf(k)
for k in "vit beit swinv2 convnextv2 dinov2 vit_mae segformer poolformer mobilevit levit cvt dpt siglip_vision_model vit_msn yolos pvt_v2 hiera ijepa".split(): MODELS[f"hf/{k}"]=hf(k)
for k in "wav2vec2 hubert wavlm unispeech data2vec-audio".split(): MODELS[f"hf/{k}"]=hf(k)
MODELS["hf/audio-spectrogram-transformer"]=hf("audio-spectrogram-transformer",call=lambda c:(lambda m,x=torch.randn(2,c.max_length,c.num_mel_bins):m(x)))
MODELS["hf/timesformer"]=hf("timesformer",num_frames=2,image_size=32,patch_size=16,call=lambda c:(lambda m,x=torch.randn(1,2,3,32,32):m(x)))
MODELS["hf/patchtst"]=hf("patchtst",call=lambda c:(lambda m,x=torch.randn(2,c.context_length,c.num_input_channels):m(past_values=x)))
MODELS["hf/clip"]=hf("clip",call=lambda c:(lambda m,i=torch.arange(3,27).view(2,12),p=torch.randn(2,3,224,224):m(input_ids=i,pixel_values=p)))
for n in "gpt2 deit_tiny_patch16_224 cait_xxs24_224 xcit_nano_12_p16_224 coat_lite_tiny convit_tiny crossvit_9_240 pit_ti_224 tnt_s_patch16_224 visformer_tiny volo_d1_224 twins_svt_small edgenext_xx_small fastvit_t8 mobileone_s0 repvit_m0_9 nest_tiny maxvit_pico_rw_256 gcvit_xxtiny davit_tiny vit_tiny_patch16_rope_ape_224 naflexvit_base_patch16_gap sequencer2d_s resmlp_12_224 gmlp_ti16_224 convmixer_768_32 hiera_tiny_224 samvit_base_patch16 beitv2_base_patch16_224 metaformer".split()[1:-1]: MODELS[f"timm/{n}"]=C.__dict__["timm_model"] and (lambda n=n: C.timm_model(n))
def tv(name,size=64,**kw):
    def build():
        import torchvision; torch.manual_seed(0); m=getattr(torchvision.models,name)(weights=None,**kw); x=torch.randn(2,3,size,size); return m,lambda q:q(x)
    return build
for n,kw in {"maxvit_t":dict(size=224),"swin_v2_t":{},"convnext_tiny":{},"mobilenet_v3_small":{},"efficientnet_b0":{},"regnet_y_400mf":{},"shufflenet_v2_x0_5":{},"mnasnet0_5":{},"googlenet":dict(aux_logits=False,init_weights=False),"densenet121":{}}.items(): MODELS[f"tv/{n}"]=tv(n,**kw)
def pyg(make,*more):
    def build():
        torch.manual_seed(0); import torch_geometric.nn as G; m=make(G); x=torch.randn(30,16); e=torch.randint(30,(2,120)); b=torch.arange(30)//10
        kw={"e":e}; return m,(lambda q:q(x,e)) if not more else more[0](x,e,b)
    return build
MODELS|={"pyg/gcn":pyg(lambda G:G.GCN(16,32,2,5)),"pyg/gat":pyg(lambda G:G.GAT(16,32,2,5,heads=4,v2=True)),"pyg/sage":pyg(lambda G:G.GraphSAGE(16,32,2,5,norm="layer_norm")),"pyg/edgecnn":pyg(lambda G:G.EdgeCNN(16,32,2,5)),
 "pyg/transformer":pyg(lambda G:G.Sequential("x, e",[(G.TransformerConv(16,8,4),"x, e -> x"),nn.GELU(),nn.Linear(32,5)])),
 "pyg/gps":pyg(lambda G:G.GPSConv(16,G.GINConv(nn.Sequential(nn.Linear(16,16),nn.ReLU(),nn.Linear(16,16))),heads=4)),
 "pyg/pna":pyg(lambda G:G.PNA(16,32,2,5,aggregators=["mean","max","std"],scalers=["identity","amplification"],deg=torch.tensor([0,3,9,9,5]))),
 "pyg/resgated":pyg(lambda G:G.Sequential("x, e",[(G.ResGatedGraphConv(16,32),"x, e -> x"),G.LayerNorm(32),nn.ReLU(),nn.Linear(32,5)])),
 "pyg/schnet":pyg(lambda G:G.SchNet(32,32,2,16),lambda x,e,b:(lambda q,z=torch.randint(1,9,(30,)),p=torch.randn(30,3)*2:q(z,p,b)))}
