"""CUOBJDUMP A.so B.so: kernels whose machine code differs; 5 minutes a file of 38 MB."""
import subprocess,sys,re,hashlib
def load(p):
    out=subprocess.run([sys.argv[1],"-sass",p],capture_output=True,text=True).stdout
    d={};name=None;h=None
    for l in out.splitlines():
        m=re.match(r"\s*Function : (\S+)",l)
        if m:
            if name: d[name]=h.hexdigest()
            name=m.group(1); h=hashlib.md5()
        elif name and "/*" in l: h.update(re.sub(r"/\*[0-9a-f]{4,6}\*/","",l).encode())
    if name: d[name]=h.hexdigest()
    return d
a,b=load(sys.argv[2]),load(sys.argv[3])
print(len(a),len(b)); diff=[k for k in a if k in b and a[k]!=b[k]]
print("changed",len(diff)); print("\n".join(x[:140] for x in diff[:60])); print("gone",[k[:100] for k in a if k not in b][:20]); print("new",len([k for k in b if k not in a]),[k[:90] for k in b if k not in a][:30])
