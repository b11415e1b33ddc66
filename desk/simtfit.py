import sys; sys.path.insert(0,'/tmp')
import numpy as np
from simtrows import rows
from scipy.optimize import least_squares
R=rows('/tmp/o28/o/ab_old.txt','/tmp/o28/o/ab_new.txt','/tmp/o30/o/ab_new.txt')
# filter to 8x64, 64x8, 64x64
def lds(kind,m,n,k): return (k if kind!='w' else m, k if kind=='f' else n)
D=[]
for x in R:
    kind,m,n,k,tm,tn,s,pred,meas,cub=x
    lda,ldb=lds(kind,m,n,k)
    wa=lda%4!=0; wb=ldb%4!=0
    sk=-(-k//s); sk=-(-sk//64)*64 if s>1 else k; real=-(-k//sk)
    tiles=-(-m//tm)*-(-n//tn)*real
    D.append((tm,tn,tiles,sk,wa,wb,n%4!=0,real,m,n,k,pred,meas,kind,cub))
print(len(D))
def old(d):
    tm,tn,tiles,sk,wa,wb,cut,real,m,n,k,pred,meas,kind,cub=d
    return pred
for t in ((8,64),(64,8),(64,64),(128,128)):
    for sp in (0,1):
        i=[d for d in D if (d[0],d[1])==t and (d[7]>1)==bool(sp)]
        if len(i)<5: continue
        e=np.log(np.array([d[11] for d in i])/np.array([d[12] for d in i]))
        print(t,sp,len(i),'pred/meas bias %.2f rms %.2f'%(e.mean(),e.std()))
# fit per tile type
def model(p,i):
    L,T,c,lat,words,Rd,cutc=p
    out=[]
    for d in i:
        tm,tn,tiles,sk,wa,wb,cut,real,m,n,k=d[:11]
        res=2 if tm*tn==512 else 1
        per=-(-tiles//132)          # tiles of the busiest SM
        w=(wa*tm+wb*tn)*words/128
        # time of a round of up to res tiles: latency alone vs issue
        rounds=-(-per//res); full=min(per,res)
        cyc=rounds*(T+max((c+w)*full,lat+w)*sk)+per*(tm*tn/2*(1 if not cut or real>1 else cutc))
        dram=(m*k+k*n+m*n)*4/4.2e6
        us=L+max(cyc/1600,dram)
        if real>1: us+=Rd+m*n*real*4/8.4e6
        out.append(us)
    return np.array(out)
for t in ((8,64),(64,8),(64,64),(128,128)):
    i=[d for d in D if (d[0],d[1])==t]
    if len(i)<20: continue
    Y=np.array([d[12] for d in i])
    f=lambda p: np.log(model(p,i)/Y)
    r=least_squares(f,[1.2,1500,tm_ if False else (8 if t!=(64,64) else 45),12,8,1.5,2],loss='soft_l1',f_scale=.1,bounds=([0,0,.1,.1,0,-2,0],[5,9000,400,400,100,8,50]))
    e=f(r.x)
    print(t,len(i),[round(x,2) for x in r.x],'rms %.3f p90 %.3f'%(e.std(),np.percentile(abs(e),90)))
    for w in (0,1,2):
        j=[a for a,d in enumerate(i) if d[4]+d[5]==w]
        print('   words',w,len(j),'bias %.3f rms %.3f'%(e[j].mean(),e[j].std()))
    for j in np.argsort(-abs(e))[:6]: print('    ',i[j],'%.1f'%model(r.x,[i[j]])[0])
print('--- by rounds')
for t in ((8,64),(64,8),(64,64)):
    i=[d for d in D if (d[0],d[1])==t]
    Y=np.array([d[12] for d in i])
    f=lambda p: np.log(model(p,i)/Y)
    r=least_squares(f,[1.2,1500,8 if t!=(64,64) else 45,12,8,1.5,2],loss='soft_l1',f_scale=.1,bounds=([0,0,.1,.1,0,-2,0],[5,9000,400,400,100,8,50]))
    e=f(r.x)
    for lo,hi in ((0,1),(1,2),(2,3),(3,5),(5,9),(9,20),(20,1000)):
        j=[a for a,d in enumerate(i) if lo<d[2]/264<=hi]
        if j: print(t,'rounds',lo,hi,len(j),'bias %.3f rms %.3f'%(e[j].mean(),e[j].std()), 'k med',np.median([i[a][3] for a in j]))
