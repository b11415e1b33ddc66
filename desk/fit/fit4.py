from fit3 import *
P=dict(l2=1e9,pg=1,w=1,c4=0,c8=.3)
for lab,rows,dr in (('h200',h2,1.0),('h100',load('/tmp/o1/o/sk8.txt'),1.0)):
  for tag,m,n,k,ours,name,tor,cf in rows:
    for c in cf:
        tn,tk,cl=parse(c)
        if cl<4: continue
        tiles=cd(n,tn); sl=slots(cl,132)
        e=model(m,n,k,c,P,dr)
        print(lab,f"{m}x{n}x{k}",c,"tiles/slots %.2f"%(tiles/sl),"waves",math.ceil(tiles/(sl*tk)),"meas %.2f exp %.2f ratio %.2f"%(cf[c],e,cf[c]/e))
