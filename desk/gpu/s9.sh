. .carry/lanes.sh
export PYTHONPATH=$PYTHONPATH:/tmp/fe
chmod +x .carry/next/sanslot.sh; cp perf/results/h200/sanitizer.txt $O/sanitizer.txt; sed -i '/ conv:/d; / conv /d' $O/sanitizer.txt
suite2() { n=$1; t=$2; shift 2; timeout -s INT -k 15 $t python3 -m pytest -v -n 16 --maxfail=40 -p no:cacheprovider -m "gpu and not slow" "$@" > $O/suite_$n.txt 2>&1; echo "suite $n rc $? at $SECONDS"; grep -E "FAILED|ERROR| passed| failed" $O/suite_$n.txt | grep -v " PASSED" | sort -u | cut -c1-180 | tail -30; sed -i '/ PASSED \| SKIPPED /d' $O/suite_$n.txt; }
bc() { timeout $1 nice -n -10 python3 -m fusedops bench conv --pass step --dtype bf16 --peers eager,compile --case "$2" --out $O/conv$3/ >> $L/conv_$3.txt 2>&1; echo "conv $2 rc $? $SECONDS"; }
set -f
( export CUDA_VISIBLE_DEVICES=0; bc 170 'N64_C[12]*' 0 ) > $L/l0.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=1; bc 170 'N64_C[3456]*' 1 ) > $L/l1.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=2; bc 170 'N64_C[89]*' 2; bc 170 'N8_*' 2 ) > $L/l2.txt 2>&1 &
( set +f; export CUDA_VISIBLE_DEVICES=3; suite2 c 150 tests/conv tests/modules/convs; timeout 30 python3 .carry/next/conv5_prof.py 2>/dev/null > $O/conv_prof.txt ) > $L/l3.txt 2>&1 &
( export GPUS="3" SLOTS=5 FUSEDOPS_COMMIT=; timeout 205 python3 scripts/sanitize/tools.py --sanitizer $PWD/.carry/next/sanslot.sh --limit 180 --commit $(cat .carry/commit) --missing --jobs 5 --budget 170 --out $O/sanitizer.txt --family conv; echo "san rc $? $SECONDS" ) > $L/san1.txt 2>&1 &
finish ${LIMIT:-200}
set +f
for f in l0 l1 l2 l3 san1; do echo "##### $f"; cut -c1-170 $L/$f.txt | tail -45; done
cat $O/conv[012]/conv.csv | awk -F, '$6=="compile"{print $8,$5,$7,$2}' | sort -n
tail -1 /tmp/ir.log; pack
