import re
def load(f):
    out=[]
    for l in open(f):
        m=re.match(r"(\w+) (\d+)x(\d+)x(\d+) ours ([\d.]+) \((.*?), ([\d.]+)\) torch ([\d.]+)",l)
        if not m: continue
        cfgs=dict((a,float(b)) for a,b in re.findall(r"(\d+x\d+_\w+_1x\d):([\d.]+)",l))
        out.append((m[1],int(m[2]),int(m[3]),int(m[4]),float(m[5]),m[6],float(m[8]),cfgs))
    return out
if __name__=="__main__":
    for r in load("/tmp/o2/o/sk8.txt"): print(r)
