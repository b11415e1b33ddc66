import numpy as np,re
def rd(f):
    d={}
    for l in open(f):
        w=l.split()
        if len(w)<8 or w[0] not in('new','old'): continue
        m=re.match(r'(.*)_([\d.]+)$',w[7])
        if not m: continue
        d[tuple([w[1]]+[int(x) for x in w[2:5]])]=(float(w[5].split(':')[1]),float(w[6].split(':')[1]),m[1],float(m[2]))
    return d
n,o=rd('ab_new.txt'),rd('ab_old.txt')
for nm,d,pre in (('old fma',o,'sm80'),('new parts',n,'parts'),('old unaligned',o,'unaligned'),('old thin',o,'thin'),('new thin',n,'thin')):
    v=[(x,d[x]) for x in d if d[x][2].startswith(pre)]
    for sp in (0,1):
      for lo,hi in ((0,5.5),(5.5,8),(8,11),(11,15),(15,25),(25,60),(60,1e9)):
        r=[(a[1]/a[3],a[1]-a[3]) for x,a in v if lo<=a[3]<hi and ('splits' in a[2])==bool(sp)]
        if len(r)>4: r=np.array(r); print(nm,'splits' if sp else 'one',lo,hi,len(r),'meas/pred median %.2f p10 %.2f p90 %.2f diff median %.1f'%(np.median(r[:,0]),np.percentile(r[:,0],10),np.percentile(r[:,0],90),np.median(r[:,1])))
