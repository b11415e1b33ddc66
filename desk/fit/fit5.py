import math,sys,itertools
from fit import load
from fit2 import C,cd,slots,parse
def model(m,n,k,cfg,P,dr=1.0,sms=132):
    tn,tk,cl=parse(cfg)
    cols=8 if m<=8 else 16 if m<=16 else cd(m,32)*32
    tiles=cd(n,tn); blocks=tiles*cl
    sl=slots(cl,sms)
    waves=math.ceil(tiles/(sl*tk))
    big=cl>=4
    per_sm=min(tk,math.ceil(tiles/sl)) if big else min(tk,math.ceil(blocks/sms))
    pieces=cd(cd(m,8),cl); sent=(cl-1)*pieces*tn*32
    byt=(tn+cols)*2*k/cl
    inf=(228/tk-1)*1024-sent
    read=byt/min(inf/C['lat'],C['smb']/per_sm)
    mma=k/cl/16*(tn/64)*max(cols/2,C['minmma'])*per_sm/C['cyc']
    halves=blocks<=sms/2
    busy=min(1,blocks/(sms/2 if halves else sms))
    dram=n*k*2/(C['dram']*dr)/busy**C['idle']
    a=waves*max(read,mma)
    main=(dram**C['ov']+a**C['ov'])**(1/C['ov'])
    u=C['uneven']*cols/128
    if big and tiles>sl: main*=1+P['u2']+u*P['u3']
    elif per_sm>1: main*=1+u
    if big and tiles<=sl: main*=1+P['v']*cols/128
    if halves: main*=C['unst']
    if (k*2)%32: main*=1+C['cut']/cl
    pair=C['pair'] if cl>1 else 0
    return C['launch']+(waves-1)*C['wave']*P['w']+main+C['piece']*pieces+((pair+sent/C['pairb']) if cl>1 else 0)+(P['c4'] if cl==4 else P['c8'] if cl==8 else 0)
def run(P,rows,dr,verbose=False):
    tot=[];res=[]
    for tag,m,n,k,ours,name,tor,cf in rows:
        ex={c:model(m,n,k,c,P,dr) for c in cf}
        best=min(cf,key=cf.get); ch=min(ex,key=ex.get)
        loss=cf[ch]/cf[best]; tot.append(math.log(loss))
        for c in cf:
            if parse(c)[2]>=4 and cf[c]<1.5*cf[best]: res.append(math.log(ex[c]/cf[c]))
        if verbose and (loss>1.05 or tor/cf[ch]<1.03): print(f"  {m}x{n}x{k} chosen {ch} {cf[ch]:.2f} (exp {ex[ch]:.2f}) best {best} {cf[best]:.2f} (exp {ex[best]:.2f}) loss {loss:.2f} torch/chosen {tor/cf[ch]:.2f}")
    return sum(tot)/len(tot), math.sqrt(sum(r*r for r in res)/len(res)), sum(res)/len(res)
h2=load('/tmp/o2/o/sk8.txt'); 
best=None
for u2,u3,v,w,c4,c8 in itertools.product([0,.05,.1,.15,.2],[0.5,1,1.5],[0,.1,.2,.3],[.7,1,1.3],[0,.15],[0,.15,.3,.45]):
    P=dict(u2=u2,u3=u3,v=v,w=w,c4=c4,c8=c8)
    r=run(P,h2,1.0)
    if best is None or r[0]+.1*r[1]<best[0]: best=(r[0]+.1*r[1],r,P)
print(best); run(best[2],h2,1.0,True)
for P in (dict(u2=.15,u3=1,v=0.2,w=1,c4=0,c8=.3),dict(u2=.1,u3=1,v=0.2,w=1,c4=0,c8=.3),dict(u2=.15,u3=1,v=0.2,w=1,c4=0,c8=.15),dict(u2=.15,u3=1,v=0,w=1,c4=0,c8=.3),dict(u2=.15,u3=1,v=0.,w=1,c4=0,c8=0)): print(P,run(P,h2,1.0))
