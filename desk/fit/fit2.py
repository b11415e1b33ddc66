import math,sys
sys.path.insert(0,'/tmp')
from fit import load
C=dict(launch=1.08,wave=2,dram=4.37e6,lat=1.28,smb=1.65e5,pairb=2.67e4,pair=.27,piece=.124,minmma=15,cyc=1700,ov=3.5,idle=.46,uneven=.305,cut=.45,unst=1.12)
cd=lambda a,b:-(-a//b)
def slots(b,sms): return sms//b if b<4 else sms*10//(11*b)
def parse(c):
    t,d,n=c.split('_'); return int(t.split('x')[1]), {'deep':1,'half':2,'third':3}[d], int(n[2:])
def model(m,n,k,cfg,C=C,sms=132,v=0):
    tn,tk,cl=parse(cfg)
    cols=8 if m<=8 else 16 if m<=16 else cd(m,32)*32
    tiles=cd(n,tn); blocks=tiles*cl
    waves=math.ceil(tiles/(slots(cl,sms)*tk))
    per_sm=min(tk,math.ceil(blocks/sms))
    pieces=cd(cd(m,8),cl); sent=(cl-1)*pieces*tn*32
    byt=(tn+cols)*2*k/cl
    inf=(228/tk-1)*1024-sent
    read=byt/min(inf/C['lat'],C['smb']/per_sm)
    mma=k/cl/16*(tn/64)*max(cols/2,C['minmma'])*per_sm/C['cyc']
    halves=blocks<=sms/2
    busy=min(1,blocks/(sms/2 if halves else sms))
    dram=n*k*2/C['dram']/busy**C['idle']
    a=waves*max(read,mma)
    main=(dram**C['ov']+a**C['ov'])**(1/C['ov'])
    if per_sm>1: main*=1+C['uneven']*cols/128
    if halves: main*=C['unst']
    if (k*2)%32: main*=1+C['cut']/cl
    return C['launch']+(waves-1)*C['wave']+main+C['piece']*pieces+(C['pair']+sent/C['pairb'] if cl>1 else 0), dict(waves=waves,per=per_sm,read=read,mma=mma,dram=dram,sent=sent,blocks=blocks)
if __name__=="__main__":
    rows=load(sys.argv[1] if len(sys.argv)>1 else "/tmp/o2/o/sk8.txt")
    tot=[]
    for tag,m,n,k,ours,name,tor,cf in rows:
        ex={c:model(m,n,k,c)[0] for c in cf}
        best=min(cf,key=cf.get); ch=min(ex,key=ex.get)
        loss=cf[ch]/cf[best]; tot.append(math.log(loss))
        print(f"{m}x{n}x{k} chosen {ch} {cf[ch]:.2f} (exp {ex[ch]:.2f}) best {best} {cf[best]:.2f} (exp {ex[best]:.2f}) loss {loss:.2f} torch/best {tor/cf[best]:.2f}")
    print("mean loss", math.exp(sum(tot)/len(tot)))
