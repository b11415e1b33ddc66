import csv,collections,sys
kern={}
for d in sys.argv[2:]:
    for r in csv.DictReader(open(d+'/wild_kernels.csv')):
        kern[(r['case'],r['dtype'],r['pass'])]=r
fam=collections.defaultdict(list)
for d in sys.argv[2:]:
    by=collections.defaultdict(dict)
    for r in csv.DictReader(open(d+'/wild.csv')):
        if r['speedup']: by[(r['case'],r['dtype'],r['pass'])][r['peer']]=(float(r['ours_us']),float(r['peer_us']),r['tflops'],r['gbps'])
    for k,v in by.items():
        p=min(v,key=lambda x:v[x][1]); o=v[p]
        fam[k[0].split('/')[0]].append((o[1]/o[0],k,p,o))
for f in sys.argv[1].split(','):
    l=sorted(fam[f]); print(f,len(l), 'below 1:',sum(x[0]<1 for x in l))
    for x in l[:30]:
        if x[0]<1: print('  %.3f %s %s %s | %s ours %.1f theirs %.1f tf %s gb %s'%(x[0],x[1][0].split('/',2)[2],x[1][1],x[1][2],x[2],x[3][0],x[3][1],x[3][2],x[3][3]), '|', {a:b for a,b in kern.get(x[1],{}).items() if a not in('case','dtype','pass')})
