import re
from fusedops import _C
ACT={'none':0,'relu':1,'gelu':2}
import fusedops
from fusedops._core.activation import CODES
base={}
for l in open('/tmp/r9/o/wide_b.txt'):
    m=re.match(r'base (\d+)x(\d+)x(\d+)/(\w+) ([\d.]+) us .* bad \d+ (.*)',l)
    if m: base[m.group(1,2,3,4)]=(float(m.group(5)),m.group(6))
bad=0
for l in open('/tmp/r9/o/wide_a.txt'):
    m=re.match(r'wide (\d+)x(\d+)x(\d+)/(\w+) ([\d.]+) us .* thin wide',l)
    if not m: continue
    M,N,K=map(int,m.group(1,2,3)); b=base[m.group(1,2,3,4)]
    opt=dict(dtype="bfloat16",epilogue="fused",activation=CODES[m[4]],allow_tf32=False,capability=90,sm_count=132)
    f=_C.thin_gemm(M,N,K,a=(K,1,0),b=(1,K,0),**opt); u=_C.unaligned_gemm(M,N,K,a=(K,1,0),b=(1,K,0),**opt)
    wide=float(m[5])
    exp=f.get('expected_us'); other=f.get('other_us')
    uu=u.get('expected_us') if u.get('rejected') is None else None
    name=f.get('name','')
    pick='wide' if f.get('takes') and 'wide' in name and not u.get('takes') else 'base'
    t=wide if pick=='wide' else b[0]
    best=min(wide,b[0])
    print('%-22s wide %.1f (exp %s) base %.1f %s (gemm %.1f unal %s) -> %s %.2f'%(m[0].split()[1],wide,'%.1f %s'%(exp,name.split(' ')[1]) if exp else None,b[0],b[1][:22],other or -1,'%.1f'%uu if uu else None,pick,best/t))
