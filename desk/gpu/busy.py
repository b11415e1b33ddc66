import csv, glob, math, sys, collections
B = collections.defaultdict(dict)
for f in glob.glob(sys.argv[1] + "/*/models_shares.csv"):
    for r in csv.DictReader(open(f)): B[r["case"].split("/")[0]][r["contender"].split("/")[-1]] = float(r["busy_us"])
G = collections.defaultdict(list); print("GPU busy (free of the host's load): best pass fuse")
for m, d in B.items():
    t = lambda n: d.get(n, math.inf)
    c = min(t("compile"), t("compile_whole"))
    x = {"best": min(t("eager"), c, t("liger")) / min(t("fuse"), t("inductor"), t("fuse_compile")), "pass": c / min(t("inductor"), t("fuse_compile")), "fuse": t("eager") / t("fuse")}
    for k, v in x.items():
        if math.isfinite(v) and v > 0: G[k].append((v, m))
    print(f"{m:17}", *(f"{v:.3f}" for v in x.values()))
for k, v in G.items(): print(k, f"geomean {math.exp(sum(math.log(a) for a, _ in v)/len(v)):.3f} of {len(v)}; lowest", *(f"{m} {a:.3f}" for a, m in sorted(v)[:4]))
