import csv, glob, math, sys, collections
for p in ("infer", "step"):
    by = collections.defaultdict(list)
    for f in glob.glob(f"{sys.argv[1]}/{p}/conv.csv"):
        for r in csv.DictReader(open(f)): by[r["peer"]].append((float(r["speedup"]), r["case"], r["ours_us"]))
    for peer, v in by.items():
        print(p, peer, len(v), "geomean %.3f" % math.exp(sum(math.log(x[0]) for x in v) / len(v)), "; ".join(f"{c} {u} {s:.2f}" for s, c, u in sorted(v)[:7]))
        print("   3x3 to 64:", "; ".join(f"{c} {u} {s:.2f}" for s, c, u in v if "_O64_k3_s1" in c))
