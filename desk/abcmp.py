import math
def rd(f):
    d={}
    for l in open(f):
        w=l.split()
        if len(w)<8 or w[0] not in('new','old'): continue
        d[tuple(w[1:5])]=(float(w[5].split(':')[1]),float(w[6].split(':')[1]),w[7])
    return d
n,o=rd('ab_new.txt'),rd('ab_old.txt')
k=[x for x in n if x in o]
print(len(k))
import numpy as np
r=np.array([n[x][0]/n[x][1] for x in k]); ro=np.array([o[x][0]/o[x][1] for x in k])
print('vs cublas new geo %.3f p5 %.3f min %.3f | old geo %.3f p5 %.3f min %.3f'%(np.exp(np.log(r).mean()),np.percentile(r,5),r.min(),np.exp(np.log(ro).mean()),np.percentile(ro,5),ro.min()))
print('worse than old'); 
for x in sorted(k,key=lambda x:o[x][1]/n[x][1])[:20]: print(x,'old %.1f new %.1f cublas %.1f'%(o[x][1],n[x][1],n[x][0]),n[x][2],o[x][2])
print('worst vs cublas')
for x in sorted(k,key=lambda x:n[x][0]/n[x][1])[:25]: print('%.2f'%(n[x][0]/n[x][1]),x,'old %.1f new %.1f cublas %.1f'%(o[x][1],n[x][1],n[x][0]),n[x][2],o[x][2])
print('big')
for x in k[:10]: print(x,'old %.1f new %.1f cublas %.1f'%(o[x][1],n[x][1],n[x][0]),n[x][2])
