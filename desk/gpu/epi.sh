# epi: about 160 s (rates 80, tests 45, sanitizer 30, rows 30). Carry beside it: epi/epi.py, epi/race.py, epi/ir.txz (LTO-IR of the main loops, as in round B; into /tmp/fo, so that tests/epilogue of the whole suite have it, too).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); d="$here/epi"; [ -e "$d/ir.txz" ] || d="$here"
ir=/tmp/fo/fusedops/_epilogue/ir; out="${OUT:-/tmp}/epi"; mkdir -p "$out/rows"; export FUSEDOPS_CACHE_DIR=/tmp/epicache
[ -d $ir ] || { t=$(mktemp -d) && tar xJf "$d/ir.txz" -C $t && mv -nT $t/ir $ir; }
# 1. right against float64 (first numbers: y, kept product, gradients in roundings; ok wants below 1.2, 1, 1.5), every mode the same bits, rates
LIMIT=${LIMIT:-80} timeout 110 python3 "$d/epi.py" > "$out/rates.txt" 2>&1; echo "ok $(grep -c ^ok "$out/rates.txt") of 28"; grep -v ^ok "$out/rates.txt" | tail -34 | cut -c1-200
# 2. tests/epilogue, and the project of `fusedops new --epilogue`, on the GPU
timeout 90 python3 -m pytest -q -n 4 -p no:cacheprovider -m gpu tests/epilogue tests/users/test_new.py -k "not op_on_a_gpu and not wheel" > "$out/tests.txt" 2>&1; grep -E "^FAILED|^ERROR|passed|failed" "$out/tests.txt" | cut -c1-160 | head -8
# 3. racecheck of the configuration without clusters (13 is number 3 of CONFIGS) and the backward; memcheck and synccheck of all: at once
for t in "racecheck 3" "memcheck 0,1,2,3" "synccheck 0,1,2,3"; do set -- $t
  timeout 70 compute-sanitizer --tool $1 python3 "$d/race.py" $2 > "$out/$1.txt" 2>&1 & done; wait
for t in racecheck memcheck synccheck; do echo "$t: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|^ran' "$out/$t.txt" | tr '\n' ' ')"; done
# 4. rows of the suite
for p in fwd step; do timeout 60 python3 -m fusedops bench epilogue --pass $p --dtype bf16 --out "$out/rows/" > "$out/bench_$p.txt" 2>&1; echo "bench $p rc $?"; grep "/" "$out/bench_$p.txt" | tail -15 | cut -c1-150; done
