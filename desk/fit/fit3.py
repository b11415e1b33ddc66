import math,sys
from fit import load
from fit2 import C,cd,slots,parse
import fit2
def model(m,n,k,cfg,P,dr=1.0,sms=132):
    tn,tk,cl=parse(cfg)
    cols=8 if m<=8 else 16 if m<=16 else cd(m,32)*32
    tiles=cd(n,tn); blocks=tiles*cl
    sl=slots(cl,sms)
    waves=math.ceil(tiles/(sl*tk))
    per_sm=min(tk,math.ceil(tiles/sl)) if cl>=4 else min(tk,math.ceil(blocks/sms))
    pieces=cd(cd(m,8),cl); sent=(cl-1)*pieces*tn*32
    byt=(tn+cols)*2*k/cl
    inf=(228/tk-1)*1024-sent
    read=byt/min(inf/C['lat'],C['smb']/per_sm)
    mma=k/cl/16*(tn/64)*max(cols/2,C['minmma'])*per_sm/C['cyc']
    halves=blocks<=sms/2
    busy=min(1,blocks/(sms/2 if halves else sms))
    dram=n*k*2/(C['dram']*dr)/busy**C['idle']
    l2=tiles*(tn+cols)*2*k/P['l2']
    a=waves*max(read,mma)
    if P['l2'] : a=max(a,l2)
    main=(dram**C['ov']+a**C['ov'])**(1/C['ov'])
    if per_sm>1: main*=1+C['uneven']*cols/128
    if halves: main*=C['unst']
    if (k*2)%32: main*=1+C['cut']/cl
    pair=C['pair']*(P['pg']**(math.log2(cl)-1) if cl>1 else 0)
    wave=C['wave']+(P['w'] if cl>=4 else 0)
    return C['launch']+(waves-1)*wave+main+C['piece']*pieces+((pair+sent/C['pairb']) if cl>1 else 0)+(P['c4'] if cl==4 else P['c8'] if cl==8 else 0)
def run(P,rows,dr,verbose=False):
    tot=[];res=[]
    for tag,m,n,k,ours,name,tor,cf in rows:
        ex={c:model(m,n,k,c,P,dr) for c in cf}
        best=min(cf,key=cf.get); ch=min(ex,key=ex.get)
        loss=cf[ch]/cf[best]; tot.append(math.log(loss))
        for c in cf:
            if parse(c)[2]>=4: res.append(math.log(ex[c]/cf[c]))
        if verbose and loss>1.05: print(f"  {m}x{n}x{k} chosen {ch} {cf[ch]:.2f} (exp {ex[ch]:.2f}) best {best} {cf[best]:.2f} (exp {ex[best]:.2f}) loss {loss:.2f} torch/chosen {tor/cf[ch]:.2f}")
    return sum(tot)/len(tot), math.sqrt(sum(r*r for r in res)/len(res)), sum(res)/len(res)
h2=load('/tmp/o2/o/sk8.txt')
if __name__=="__main__":
    import itertools
    best=None
    for l2,pg,w,c4,c8 in itertools.product([1e9,7e6,6e6,5.5e6,5e6],[1],[0,1,2,4],[0,.2,.4,.6],[0,.3,.6,.9,1.2]):
        P=dict(l2=l2,pg=pg,w=w,c4=c4,c8=c8)
        r=run(P,h2,1.0)
        if best is None or r[0]+.05*r[1]<best[0]: best=(r[0]+.05*r[1],r,P)
    print(best); run(best[2],h2,1.0,True)
    print(run(dict(l2=1e9,pg=1,w=0,c4=0,c8=0),h2,1.0,True))
