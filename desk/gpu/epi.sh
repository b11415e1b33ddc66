# epi: about 170 s (epi.py 90, tests 30, sanitizers 30, rows 40). Beside it: epi.py, epi_race.py, epi_first.py, epi_ir.sum, epi_ir/. NEEDS /tmp/irepi/ir (12 files) as fusedops/_epilogue/ir.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); fo=$(python3 -c "import fusedops,os;print(os.path.dirname(fusedops.__file__))"); ir=$fo/_epilogue/ir
out="${OUT:-/tmp}/epi"; mkdir -p "$out/rows" $ir; export FUSEDOPS_CACHE_DIR=/tmp/epicache
rm -f $ir/*_reads.ltoir; [ -e $ir/bf16_5.ltoir ] && [ -e $here/epi_ir/bf16_1p.ltoir ] || { echo "epi: no LTO-IR of the new main loops in $ir (/tmp/irepi/ir), or no epi_ir/ beside epi.sh"; exit 1; }
(cd $ir && echo "IR files unlike /tmp/irepi/ir: $(sha256sum --quiet -c "$here/epi_ir.sum" 2>/dev/null | wc -l)"); cp $here/epi_ir/*.ltoir $ir/
# 1. right against float64 in every main loop, keeping and not, looped and not, many tiles a CTA; then times
LIMIT=${LIMIT:-75} timeout 150 python3 "$here/epi.py" > "$out/rates.txt" 2>&1; tail -34 "$out/rates.txt" | cut -c1-210
# first use, then a later process
for i in 1 2; do FUSEDOPS_CACHE_DIR=/tmp/epifirst timeout 60 python3 "$here/epi_first.py" 2>&1 | tail -1; done
# 2. rows
for p in fwd step; do timeout 100 python3 -m fusedops bench epilogue --pass $p --dtype bf16 --out "$out/rows/" > "$out/bench_$p.txt" 2>&1; grep "/" "$out/bench_$p.txt" | sed 's/.*epilogue //; s/; error.*//; s/us, eager.*builtin/us, builtin/' | tail -18 | cut -c1-90; done

# 3. tests on the GPU
timeout 100 python3 -m pytest -q -n 4 -p no:cacheprovider -m gpu tests/epilogue > "$out/tests.txt" 2>&1; grep -E "^FAILED|^ERROR|passed|failed" "$out/tests.txt" | cut -c1-160 | head -5
# 4. sanitizers (13 and 0, which have no cluster, for racecheck; all for the others)
for t in racecheck memcheck synccheck; do timeout 80 compute-sanitizer --tool $t python3 "$here/epi_race.py" $t > "$out/$t.txt" 2>&1 & done; wait
for t in racecheck memcheck synccheck; do echo "$t: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|^ran' "$out/$t.txt" | tr '\n' ' ')"; done
