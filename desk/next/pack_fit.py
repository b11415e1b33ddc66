import csv,json,math,random
exec(open(__file__.replace('pack_fit','pack_fit_points')).read())
cd=lambda a,b:-(-a//b)
TL=[(32,128,2,2,4),(64,128,2,2,4),(128,128,1,2,4),(128,64,2,4,2),(128,32,2,4,2)]
PT=[(128,64,1,4,2),(64,64,2,2,4)]
data=[(m,n,k,T_,sl,t,False,False) for m,n,k,T_,sl,t,_ in pts]
for r in csv.DictReader(open('/work/notes/next/pack_random_h200.csv')):
    for key,t in json.loads(r['tiles']).items():
        if not isinstance(t,float): continue
        ti,sl=map(int,key.split('/')); f=r['dt']=='fp32'
        data.append((int(r['m']),int(r['n']),int(r['k']),(PT if f else TL)[ti],sl,t-1.5,f,True))
def model(p,c):
    m,n,k,(tm,tn,per,wm,wn),sl,_,f,red=p
    blocks=cd(m,tm)*cd(n,tn)*sl; waves=math.ceil(blocks/(132*per)); res=min(per,math.ceil(blocks/132))
    used=min(m,tm)+min(n,tn); kk=32 if f else 64
    loads=used*128/c["ld"]; sh=(tm+tn+tm*wn+tn*wm)*(3*2*kk if f else 2*kk)/c["sh"]
    mma=tm*tn*kk*(6 if f else 1)/c["mma"]; issue=(tm+tn)*kk*c["pi"]/128 if f else 0
    l1=loads+sh; alone=c["lat"]+c["ex"]*(l1+mma)+issue
    step=max(res*max(l1,mma+issue),alone)
    if f: step*=c["ff"]
    steps=cd(cd(k,sl),kk)
    ob=4 if f or sl>1 else 2
    st=tm*tn*(c["o1"]+c["o2"]*res)*(1 if not f else c["of"])
    us=waves*(steps*step+st+c["start"])/1700
    by=(m*k+k*n)*(4 if f else 2)+m*n*ob
    bw=c["bw200"] if red else c["bw"]
    t=3.28+(us**4+(by/bw)**4)**.25
    if sl>1 and red: t+=3.79+m*n*sl*4/(2*4.2e6)
    return t
def loss(c,d=None): 
    d=d or data
    return math.sqrt(sum(math.log(model(p,c)/p[5])**2 for p in d)/len(d))
c=dict(ld=66,sh=92,mma=1557,lat=1000,ex=.5,start=2560,o1=.4,o2=.12,bw=2.2e6,bw200=2.8e6,pi=8,ff=1.3,of=1.0)
best=loss(c); random.seed(2); print(best,len(data))
for it in range(12000):
    d=dict(c)
    for key in random.sample(list(c),random.choice((1,1,2,3))): d[key]*=math.exp(random.gauss(0,.12))
    x=loss(d)
    if x<best: best,c=x,d
print(best,{k:round(v,3) for k,v in c.items()})
h=[p for p in data if not p[7]]; print("H100",loss(c,h),"H200 16",loss(c,[p for p in data if p[7] and not p[6]]),"fp32",loss(c,[p for p in data if p[6]]))
for p in sorted(data,key=lambda p:-abs(math.log(model(p,c)/p[5])))[:12]: print(p[:3],p[3][:2],p[4],p[5],round(model(p,c),1),p[6])
