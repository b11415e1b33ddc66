import re,math,random
rows=[]
base={}
for l in open('/tmp/r9/o/wide_b.txt'):
    m=re.match(r'base (\d+)x(\d+)x(\d+)/(\w+) ([\d.]+) us .* bad \d+ (.*)',l)
    if m: base[m.group(1,2,3,4)]=(float(m.group(5)),m.group(6))
for l in open('/tmp/r9/o/wide_a.txt'):
    m=re.match(r'wide (\d+)x(\d+)x(\d+)/(\w+) ([\d.]+) us .* thin wide',l)
    if m: rows.append((int(m[1]),int(m[2]),int(m[3]),m[4],float(m[5])))
def plan(n,k):
    kp=16 if k<=16 else 32 if k<=32 else 64
    R=64
    while R>16 and R*n*2>52*1024: R//=2
    wb=-(-n//32)*32*(kp+8)*2
    if n%16 and R*n*2<=52*1024 and wb<=48*1024:
        return dict(kp=kp,parts=1,part=n,R=R,run=1,tu=-(-(R*n+7)//8))
    parts=-(-n//(128 if kp>32 else 256)); part=n if parts==1 else -(-(-(-n//parts))//16)*16
    lu=((-(-part//32)*32)//8+1)|1
    return dict(kp=kp,parts=parts,part=part,R=64,run=0,tu=64*lu)
def feats(m,n,k,act):
    p=plan(n,k); cols=-(-p['part']//32)*32
    sm=p['tu']*16+(64+cols)*(p['kp']+8)*2+cols*4
    per=min(4 if p['kp']<64 else 3, 227*1024//(sm+1024))
    tiles=-(-m//p['R'])*p['parts']
    items=p['R']//16*(cols//32)
    vec=k%8==0
    lanes=8 if p['part']<=64 else 16 if p['part']<=128 else 32
    rowit=0 if p['run'] else p['R']*lanes/256
    whole=n%8==0
    return p,per,tiles,items,vec,rowit,whole
def model(t,row):
    m,n,k,act,_=row
    p,per,tiles,items,vec,rowit,whole=feats(m,n,k,act)
    cost=(act=='gelu')
    # instructions of a warp per tile
    warp_items=items/8
    inst=warp_items*(t[0]+t[1]*p['kp']/16+(t[2] if cost else 0))+ rowit*(t[3]*(0.4 if whole else 1)) + (p['R']*n/2048*t[4] if p['run'] else 0) + (t[5] if not vec else t[5]*.3)*p['kp']/16 + t[6]
    cyc=inst*8/4  # cycles of an SM per tile at full issue
    lat=t[7]+ math.ceil(warp_items)*t[8]   # cycles of a tile alone
    slots=132*per
    live=min(per,max(1,tiles/132))
    tile=max(cyc*1.0, lat/live)
    load=-(-p["part"]//32)*32*p["kp"]/256*t[11]
    n_sm=math.ceil(tiles/132) if tiles<slots*3 else tiles/132
    us=n_sm*tile/1755
    by=(m*k+n*k+m*n)*2/(t[9]*1e6)
    return t[10]+load+(us**3+by**3)**(1/3)
def err(t):
    if min(t)<0: return 1e9
    return sum(math.log(model(t,r)/r[4])**2 for r in rows)/len(rows)
t=[90,30,150,30,30,30,100,1500,300,3.6,2.5,0.05]
best=err(t)
random.seed(1)
s=0.3
for it in range(120000):
    c=[x*math.exp(random.gauss(0,s)) if random.random()<.3 else x for x in t]
    e=err(c)
    if e<best: best,t=e,c
    if it%20000==19999: s*=.6
print([round(x,2) for x in t], math.sqrt(best))
for r in rows:
    b=base[(str(r[0]),str(r[1]),str(r[2]),r[3])]
    mo=model(t,r)
    print('%-24s %6.1f model %6.1f %.2f | base %6.1f %s %s'%('%dx%dx%d/%s'%r[:4],r[4],mo,mo/r[4],b[0],b[1], '' if b[0]>r[4] else 'LOSES'))
