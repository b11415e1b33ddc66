import csv,sys
rows=list(csv.reader(open(sys.argv[1])))
h=rows[1]; rows=rows[2:]
ix={n:i for i,n in enumerate(h)}
tot=0; data=[]
for r in rows:
    if len(r)<len(h)-2: continue
    try: s=int(r[ix['# Samples']] or 0); e=int(r[ix['Instructions Executed']] or 0)
    except: continue
    st={k:int(r[ix[k]] or 0) for k in h if k.startswith('stall_') and 'Not' not in k and r[ix[k]]}
    data.append((r[ix['Source']],s,e,st, r[ix['L1 Wavefronts Shared']], r[ix['L1 Wavefronts Shared Ideal']]))
    tot+=s
print('samples',tot,'instr',sum(d[2] for d in data))
# blocks: split at branch/barrier/label changes of executed count
blk=[];cur=None
for i,d in enumerate(data):
    if cur is None or abs(d[2]-cur['e'])>0.02*max(d[2],cur['e'],1):
        cur={'e':d[2],'s':0,'n':0,'first':i,'st':{}}; blk.append(cur)
    cur['s']+=d[1]; cur['n']+=1
    for k,v in d[3].items(): cur['st'][k]=cur['st'].get(k,0)+v
for b in blk:
    if b['s']>tot*0.008 or b['n']*b['e']>0.01*sum(d[2] for d in data):
        top=sorted(b['st'].items(),key=lambda t:-t[1])[:4]
        print(b['first'],'n',b['n'],'exec',b['e'],'samples %.1f%%'%(100*b['s']/tot),top)
print('--- top lines')
for i,d in sorted(enumerate(data),key=lambda t:-t[1][1])[:40]:
    print(i,'%.1f%%'%(100*d[1]/tot),d[0][:90],sorted(d[3].items(),key=lambda t:-t[1])[:3],d[4],d[5])
