"""Judges today's choices by measured times: for shapes of ab runs, which of (fma measured in old, parts measured in fit) would be chosen."""
import sys,re; sys.path.insert(0,'/work/main/tests')
import numpy as np
from gemm.unaligned_util import unaligned, HOPPER
from fusedops import _C
def strides(kind,m,n,k):
    a=(k,1) if kind!='w' else (1,m)
    b=(1,k) if kind=='f' else (n,1)
    return a,b
def rd(f):
    d={}
    for l in open(f):
        w=l.split()
        if len(w)<8 or w[0] not in('new','old'): continue
        m=re.match(r'(.*)_([\d.]+)$',w[7])
        if m: d[(w[1],*map(int,w[2:5]))]=(float(w[5].split(':')[1]),float(w[6].split(':')[1]),m[1])
    return d
old=rd('/tmp/o28/o/ab_old.txt'); new=rd('/tmp/o28/o/ab_new.txt'); n30=rd('/tmp/o30/o/ab_new.txt')
good=bad=0; loss=[]; rat=[]
pe=[];fe=[]
for x in old:
    if x not in n30: continue
    kind,m,n,k=x
    a,b=strides(*x)
    u=unaligned(m,n,k,a=a,b=b,dtype='float32')
    # measured alternatives
    alts={}
    for d in (old,new,n30):
        if x in d:
            nm=d[x][2]; t='fma' if nm.startswith('sm80') else 'parts' if nm.startswith('parts') else None
            if t: alts[t]=min(alts.get(t,1e9),d[x][1]) if d is not new else alts.get(t,d[x][1])
    if 'fma' in alts: fe.append(np.log(u['other_us']/alts['fma']))
    if 'parts' in alts and x in n30 and n30[x][2].startswith('parts'): pe.append(np.log(u['expected_us']/n30[x][1]))
    if len(alts)<2: continue
    c='parts' if u['takes'] else 'fma'
    loss.append(alts[c]/min(alts.values()))
print('both measured',len(loss),'loss mean %.3f p95 %.3f'%(np.mean(loss),np.percentile(loss,95)))
print('fma model bias %.2f rms %.2f'%(np.mean(fe),np.std(fe)),'parts bias %.2f rms %.2f'%(np.mean(pe),np.std(pe)))
