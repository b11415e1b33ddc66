import re,math,random
src=open('/tmp/fit.py').read()
exec(src[:src.index('def model')])
rows=[]
seen=set()
for l in open('/tmp/r10/o/wide_a.txt'):
    m=re.match(r'wide (\d+)x(\d+)x(\d+)/(\w+) ([\d.]+) us .* thin wide',l)
    if m: rows.append((int(m[1]),int(m[2]),int(m[3]),m[4],float(m[5]))); seen.add(m.group(1,2,3,4))
for l in open('/tmp/r9/o/wide_a.txt'):
    m=re.match(r'wide (\d+)x(\d+)x(\d+)/(\w+) ([\d.]+) us .* thin wide',l)
    if m and m.group(1,2,3,4) not in seen and int(m[1])>60000: rows.append((int(m[1]),int(m[2]),int(m[3]),m[4],float(m[5])))
print(len(rows))
CEIL=True
def model(t,row):
    m,n,k,act,_=row
    p,per,tiles,items,vec,rowit,whole=feats(m,n,k,act)
    cost=(act=='gelu')
    wi=items/8
    ci=math.ceil(wi)
    eff=wi*(1-t[12])+ci*t[12] if t[12]<1 else ci
    inst=eff*(t[0]+t[1]*p['kp']/16+(t[2] if cost else 0))+ rowit*(t[3]*(0.4 if whole else 1)) + (p['R']*n/2048*t[4] if p['run'] else 0) + (t[5] if not vec else t[5]*.3)*p['kp']/16 + t[6]
    cyc=inst*2
    lat=t[7]+ ci*t[8]
    slots=132*per
    each=tiles/132
    live=min(per,max(1,each))
    tile=max(cyc*1.0, lat/live)
    load=-(-p["part"]//32)*32*p["kp"]/2048*t[11]
    # rounds: whole tiles of a block
    r=math.ceil(tiles/slots)*per if tiles<slots*6 else each
    n_sm=r*t[13]+max(each,1)*(1-t[13]) if t[13]<1 else r
    us=n_sm*tile/1600
    by=(m*k+n*k+m*n)*2/(4.2e6)
    return t[10]+load+(us**3+by**3)**(1/3)
def err(t):
    if min(t)<0: return 1e9
    return sum(math.log(model(t,r)/r[4])**2 for r in rows)/len(rows)
t=[105,26,221,98,66,182,165,3000,68,1,1.5,0.4,0.5,0.5]
best=err(t)
random.seed(2)
s=0.3
for it in range(80000):
    c=[x*math.exp(random.gauss(0,s)) if random.random()<.3 else x for x in t]
    c[9]=1
    e=err(c)
    if e<best: best,t=e,c
    if it%13000==12999: s*=.6
print([round(x,2) for x in t], math.sqrt(best))
for r in rows:
    mo=model(t,r)
    q=mo/r[4]
    if q<.87 or q>1.13: print('%-24s %6.1f model %6.1f %.2f'%('%dx%dx%d/%s'%r[:4],r[4],mo,q))
