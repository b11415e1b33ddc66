s=open("/work/notes/next/rows.py").read().replace('"cuda"','"cpu"').replace("if __name__","if 0 and __name__").replace("torch.cuda.synchronize()","None")
g={}; exec(s,g)
import math, collections
print(len(g["CASES"]), collections.Counter(c[0] for c in g["CASES"]), max(math.prod(c[2]) for c in g["CASES"]))
cs=[c for c in g["CASES"] if math.prod(c[2])<60000]; per=collections.defaultdict(list)
for c in cs: per[c[0]].append(c)
g["CASES"][:]=[c for v in per.values() for c in v[:2]]
g["KNOWN"][:]=g["CASES"][:3]
g["measure"]("/tmp/rw/new.json", True); g["measure"]("/tmp/rw/old.json", False)
g["show"]("/tmp/rw/new.json","/tmp/rw/old.json")
