import math,sys,numpy as np
from scipy.optimize import least_squares
NS=[128,96,64,32]
data=[];cub={}
for f in sys.argv[1:]:
    for l in open(f):
        w=l.split()
        if len(w)<6 or w[0]!='new': continue
        kind,m,n,k=w[1],int(w[2]),int(w[3]),int(w[4])
        for x in w[5:]:
            name,us=x.split(':'); us=float(us)
            if name=='cublas': cub[(kind,m,n,k)]=us; continue
            t=int(name[1]); s=int(name[3:])
            data.append((kind,m,n,k,t,s,us))
print(len(data),len(cub))
def feat(d):
    kind,m,n,k,t,s,us=d
    N=NS[t]; sk=-(-k//s); sk=-(-sk//64)*64 if s>1 else k
    real=-(-k//sk)
    steps=-(-sk//32)
    parts=-(-m//128)*-(-n//N)*real
    waves=-(-parts//132)
    Akm=kind!='w'; Bkm=kind=='f'
    lda=k if Akm else m; ldb=k if Bkm else n
    wa=lda%4==0; wb=ldb%4==0; four=n%4==0
    dram=(m*k+k*n+m*n)*4/4.2e6
    red=(3.79-1.5+m*n*real*4/8.4e6) if real>1 else 0
    fm=min(1,m/128)
    return N,steps,waves,Akm,Bkm,wa,wb,(four or real>1) ,dram,red,parts
F=[feat(d) for d in data]; Y=np.array([d[6] for d in data])
cols=list(zip(*F))
N=np.array(cols[0],float);steps=np.array(cols[1],float);waves=np.array(cols[2],float)
Akm=np.array(cols[3],float);Bkm=np.array(cols[4],float);wa=np.array(cols[5],float);wb=np.array(cols[6],float);four=np.array(cols[7],float);dram=np.array(cols[8]);red=np.array(cols[9])
def model(p):
    base,perN,na,nb,mnA,mnB,e0,e1,e2,start,mult=p
    copy=base+perN*N+(1-wa)*na+(1-wb)*nb*N+(1-Akm)*mnA+(1-Bkm)*mnB*N
    step=np.maximum(copy, mult*N)
    cyc=waves*(steps*step+e0+e1*N+(1-four)*e2*N)
    sm=cyc/1755
    return start+(sm**4+dram**4)**.25+red
def res(p): return np.log(model(p)/Y)
p0=[600,8,300,3,100,1,2500,20,10,3,12]
r=least_squares(res,p0,loss='soft_l1',f_scale=.1)
print([round(x,2) for x in r.x],'rms',np.sqrt(np.mean(res(r.x)**2)),'p95',np.percentile(abs(res(r.x)),[50,90,95,99]))
e=res(r.x)
for t in range(4):
    for kd in 'fdw':
        i=[j for j,d in enumerate(data) if d[4]==t and d[0]==kd]
        if i: print(NS[t],kd,len(i),'bias %.3f rms %.3f'%(e[i].mean(),np.sqrt((e[i]**2).mean())))
# choice quality
import collections
by=collections.defaultdict(list)
M=model(r.x)
for d,mm in zip(data,M): by[d[:4]].append((mm,d[6],d[4],d[5]))
loss=[];rat=[]
for kx,v in by.items():
    c=min(v); b=min(x[1] for x in v); loss.append(c[1]/b); rat.append(cub[kx]/c[1])
print('choice loss mean %.3f p95 %.3f max %.3f'%(np.mean(loss),np.percentile(loss,95),max(loss)),'cublas/ours geomean %.3f p5 %.3f'%(np.exp(np.mean(np.log(rat))),np.percentile(rat,5)))
w=sorted((cub[kx]/min(v)[1],kx,min(v),min(x[1] for x in v),cub[kx]) for kx,v in by.items())[:25]
for x in w: print('%.2f'%x[0],x[1],'model %.0f took %.1f t%d s%d best %.1f cublas %.1f'%(x[2][0],x[2][1],x[2][2],x[2][3],x[3],x[4]))
for j in np.argsort(-abs(e))[:15]: print(data[j],'model %.1f'%M[j])
print('--- small')
small=[j for j in range(len(data)) if Y[j]<16]
print(len(small),'bias',e[small].mean(),'rms',np.sqrt((e[small]**2).mean()))
for lo,hi in ((0,6),(6,8),(8,12),(12,16),(16,30),(30,100),(100,1e9)):
    i=[j for j in range(len(data)) if lo<=Y[j]<hi]
    print(lo,hi,len(i),'bias %.3f rms %.3f'%(e[i].mean(),np.sqrt((e[i]**2).mean())), 's1 bias %.3f'%e[[j for j in i if data[j][5]==1]].mean())
for w in (1,2,3,4,8):
    i=[j for j in range(len(data)) if waves[j]==w]
    if i: print('waves',w,len(i),'bias %.3f'%e[i].mean())
for lo,hi in ((1,2),(2,4),(4,8),(8,16),(16,64),(64,1e9)):
    i=[j for j in range(len(data)) if lo<=steps[j]<hi]
    if i: print('steps',lo,len(i),'bias %.3f'%e[i].mean(), 'waves1 bias %.3f'%e[[j for j in i if waves[j]==1]].mean())
