import re
def rows(*files):
    out=[]
    for f in files:
        for l in open(f):
            w=l.split()
            if len(w)<8 or w[0] not in('new','old'): continue
            m=re.match(r'sm80_(\d+)x(\d+)_multistage_1x1(?:,_(\d+)_splits)?_([\d.]+)$',w[7])
            if not m: continue
            out.append((w[1],int(w[2]),int(w[3]),int(w[4]),int(m[1]),int(m[2]),int(m[3] or 1),float(m[4]),float(w[6].split(':')[1]),float(w[5].split(':')[1])))
    return out
