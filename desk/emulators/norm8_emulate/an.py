import re,sys,collections
f,pat=sys.argv[1:3]
cur=None; fn={}
for l in open(f):
    m=re.search(r'Function : (\S+)',l)
    if m: cur=m.group(1); fn[cur]=[]; continue
    m=re.match(r'\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);',l)
    if m and cur: fn[cur].append((int(m.group(1),16),m.group(2)))
for n,ins in fn.items():
    if not re.search(pat,n): continue
    print(n,len(ins))
    for a,t in ins:
        m=re.search(r'\bBRA(?:\.\S+)? .*?(0x[0-9a-f]+)',t)
        if m and int(m.group(1),16)<=a: print(f'  back {a:#x} -> {int(m.group(1),16):#x} n={(a-int(m.group(1),16))//16+1}: {t}')
    if len(sys.argv)>4:
        lo,hi=int(sys.argv[3],16),int(sys.argv[4],16)
        c=collections.Counter()
        for a,t in ins:
            if lo<=a<=hi:
                t=re.sub(r'^@!?U?P\d+ ','',t); c[t.split()[0]]+=1
        for k,v in c.most_common(): print('   ',k,v)
    if len(sys.argv)>5:
        for a,t in ins:
            if lo<=a<=hi: print(f'{a:#x} {t}')
