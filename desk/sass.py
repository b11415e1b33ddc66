import re,sys,subprocess
subprocess.run("cuobjdump -sass /tmp/uf.o 2>/dev/null | c++filt > /tmp/uf.sass",shell=True)
cur=None;fn={}
for l in open('/tmp/uf.sass'):
    if 'Function :' in l: cur=l.split('Function :')[1].strip()[:110]; fn[cur]=[]
    elif cur and re.search(r'/\*[0-9a-f]{4,5}\*/',l): fn[cur].append(l)
for f,ls in fn.items():
    if 'parts_kernel' not in f: continue
    if len(sys.argv)>1 and sys.argv[1] not in f: continue
    out=[];last=None
    for i,l in enumerate(ls):
        for k in ('HGMMA','STL','LDL','USETMAXREG','WARPGROUP.DEPBAR','SYNCS','LDGSTS','CALL'):
            if k in l:
                if last and last[1]==k: last[2]+=1
                else: last=[i,k,1]; out.append(last)
    print(f[-60:-7],len(ls),'  ',' '.join(f'{i}:{k}x{n}' for i,k,n in out)[:900])
