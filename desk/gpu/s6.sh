. .carry/lanes.sh
export PYTHONPATH=$PYTHONPATH:/tmp/fe
chmod +x .carry/next/sanslot.sh; cp perf/results/h200/sanitizer.txt $O/sanitizer.txt
suite2() { n=$1; t=$2; shift 2; timeout -s INT -k 15 $t python3 -m pytest -v -n 13 --maxfail=40 -p no:cacheprovider -m "gpu and not slow" "$@" > $O/suite_$n.txt 2>&1; echo "suite $n rc $? at $SECONDS"; grep -E "FAILED|ERROR| passed| failed" $O/suite_$n.txt | grep -v " PASSED" | sort -u | cut -c1-180 | tail -30; sed -i '/ PASSED \| SKIPPED /d' $O/suite_$n.txt; }
A="tests/gemm tests/contract"; P="tests/points tests/conv"; R="tests/reduce tests/scan tests/elementwise tests/stencil tests/rows tests/fp8"
X=$(ls -d tests/*/ | sed 's|/$||' | grep -vxE "$(echo $A $P $R tests/project | tr ' ' '|')" | tr '\n' ' ')
bp() { timeout $1 nice -n -10 python3 -m fusedops bench pointnet --peers eager,compile --case "$2" --out $O/pn$3/ > $L/pn_$3.txt 2>&1; echo "pn $2 rc $? $SECONDS"; }
set -f
( export CUDA_VISIBLE_DEVICES=0; bp 75 'ssg*/*' 1; bp 90 'msg*/*' 1; timeout 40 python3 .carry/next/points_prof.py $O/points_prof.txt 2>&1 | tail -12; echo "prof $SECONDS" ) > $L/l0.txt 2>&1 &
( set +f; export CUDA_VISIBLE_DEVICES=1; suite2 p 190 $P ) > $L/l1.txt 2>&1 &
( set +f; while ! grep -q done /tmp/ir.log; do sleep 1; done; export CUDA_VISIBLE_DEVICES=1; suite2 x 185 $X ) > $L/l1x.txt 2>&1 &
( set +f; export CUDA_VISIBLE_DEVICES=2; suite2 r 190 $R ) > $L/l2.txt 2>&1 &
( set +f; export CUDA_VISIBLE_DEVICES=2; suite2 a 190 $A ) > $L/l2a.txt 2>&1 &
( export GPUS="2" SLOTS=8 FUSEDOPS_COMMIT=; timeout 170 python3 scripts/sanitize/tools.py --sanitizer $PWD/.carry/next/sanslot.sh --limit 150 --commit $(cat .carry/commit) --missing --jobs 8 --budget 150 --tool initcheck --out $O/sanitizer.txt --family edges; echo "san rc $? $SECONDS" ) > $L/san1.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=3; bp 165 'sa/*' 3; bp 40 'edge/*' 3 ) > $L/l3.txt 2>&1 &
finish ${LIMIT:-222}
set +f
for f in l0 l1 l1x l2 l2a l3 san1; do echo "##### $f"; cut -c1-170 $L/$f.txt | tail -45; done
tail -1 /tmp/ir.log; pack
