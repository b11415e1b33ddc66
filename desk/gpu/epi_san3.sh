# epi sanitizers, one main loop: 100 s
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); mkdir -p $OUT/epi; export FUSEDOPS_CACHE_DIR=/tmp/epicache
until [ -e /tmp/fo/fusedops/_epilogue/ir/bf16_0.ltoir ] || [ $SECONDS -gt 60 ]; do sleep 2; done
for t in racecheck memcheck synccheck; do timeout 200 compute-sanitizer --tool $t python3 "$here/epi_race2.py" $t > "$OUT/epi/$t.txt" 2>&1 & done; wait
for t in racecheck memcheck synccheck; do echo "$t: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|^ran' "$OUT/epi/$t.txt" | tr '\n' ' ') $(tail -n 1 $OUT/epi/$t.txt | cut -c1-80)"; done
