import sys,os,re,logging
import torch
import fusedops, fusedops.bench.suites.models.contenders as C
from fusedops.bench.suites.base import Selection
from fusedops.bench.suites.models.suite import SUITE
torch.set_num_threads(2)
m=sys.argv[1]
s=SUITE(); c=next(c for c in s.cases(Selection("step")) if c.name.startswith(m+"/"))
o=fusedops.inductor(force=True); C._options=lambda n:o if n=="inductor" else {}
from torch._inductor.utils import run_and_get_code
with s.context("bf16"):
    data=s.make_inputs(c,torch.bfloat16,"step",torch.device("cpu"))
    f=C.make("inductor",s._model(),"step")
    _,codes=run_and_get_code(f,*data)
    import collections
    for k,code in enumerate(codes):
        open(f'/tmp/code_{m}_{k}.py','w').write(code)
        calls=collections.Counter(re.findall(r'(?:torch\.ops|extern_kernels|cpp_fused|triton)[\w.]*(?=\()',code))
        print(k,len(code),calls)
    print(o.report)
