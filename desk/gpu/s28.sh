. .carry/lanes.sh
w() { CUDA_VISIBLE_DEVICES=$1 timeout $4 nice -n -10 python3 -m fusedops bench wild --family $2 --count $3 --seed $5 --out $O/wild$1_$5/ >> $O/wild$1.txt 2>&1; echo "wild $2 rc $? $SECONDS"; }
chmod +x .carry/next/sanslot.sh; cp .carry/next/sanitizer_now.txt $O/sanitizer.txt; sed -i '/ unaligned /d' $O/sanitizer.txt
( CUDA_VISIBLE_DEVICES=0 timeout 60 python3 .carry/next/fp32_ab.py new 22 7 > $O/ab_new.txt 2>&1; echo "ab rc $? $SECONDS"
  w 0 linear,gated 110 70 31127; w 0 linear,gated 60 45 ${SEED:-5150}
  while [ -e /tmp/measuring1 ]; do sleep 1; done
  CUDA_VISIBLE_DEVICES=0 timeout -s INT -k 10 $((ALL-SECONDS-5)) python3 -m pytest -q -n 15 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm tests/modules/test_linear.py tests/integration > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200; tail -c 300 $O/tests.txt ) &
( touch /tmp/measuring1; w 1 mlp,skinny 110 60 31127; w 1 mlp,skinny 60 45 ${SEED:-5150}; rm /tmp/measuring1
  export GPUS="1" SLOTS=4 FUSEDOPS_COMMIT=; timeout 130 python3 scripts/sanitize/tools.py --sanitizer $PWD/.carry/next/sanslot.sh --limit 125 --commit $(cat .carry/commit) --missing --jobs 4 --budget 125 --out $O/sanitizer.txt --family unaligned > $L/san.txt 2>&1; echo "san rc $? $SECONDS"; tail -2 $L/san.txt ) &
finish ${ALL:-230}
grep unaligned $O/sanitizer.txt
for i in 0_31127 1_31127 0_${SEED:-5150} 1_${SEED:-5150}; do python3 -m fusedops bench --summary $O/wild$i/wild.csv 2>/dev/null | grep "wild " | cut -c1-150; done
pack
