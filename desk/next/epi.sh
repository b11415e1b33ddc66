# epi: about 170 s (LIMIT=80 for epi.py, tests 40, sanitizer 30, rows 30). Beside it: epi.py, epi_race.py, ir.txz (epi_ir.sh makes it, on a machine without a GPU).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); fo=$(python3 -c "import fusedops,os;print(os.path.dirname(fusedops.__file__))"); ir=$fo/_epilogue/ir
out="${OUT:-/tmp}/epi"; mkdir -p "$out/rows"; export FUSEDOPS_CACHE_DIR=/tmp/epicache
[ -e $ir/bf16_6_reads.ltoir ] || { t=$(mktemp -d) && tar xJf "$here/ir.txz" -C $t && mkdir -p $ir && cp $t/ir/* $ir/; }
# 1. right against float64 in every main loop, keeping and not, looped and not, many tiles a CTA; then times
LIMIT=${LIMIT:-80} timeout 120 python3 "$here/epi.py" > "$out/rates.txt" 2>&1; tail -30 "$out/rates.txt" | cut -c1-190
# 2. tests on the GPU
timeout 100 python3 -m pytest -q -n 4 -p no:cacheprovider -m gpu tests/epilogue > "$out/tests.txt" 2>&1; grep -E "^FAILED|^ERROR|passed|failed" "$out/tests.txt" | cut -c1-160 | head
# 3. sanitizers (13_reads, which has no cluster, for racecheck; all for the others)
for t in racecheck memcheck synccheck; do timeout 80 compute-sanitizer --tool $t python3 "$here/epi_race.py" $t > "$out/$t.txt" 2>&1 & done; wait
for t in racecheck memcheck synccheck; do echo "$t: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|^ran' "$out/$t.txt" | tr '\n' ' ')"; done
# 4. rows
for p in fwd step; do timeout 60 python3 -m fusedops bench epilogue --pass $p --dtype bf16 --out "$out/rows/" > "$out/bench_$p.txt" 2>&1; grep "/" "$out/bench_$p.txt" | sed 's/.*epilogue //; s/; error.*//' | tail -15 | cut -c1-110; done
