. .carry/lanes.sh
grep -q H100 <<< "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)" && K=h100 SL=7 || K=h200 SL=11
chmod +x .carry/next/sanslot.sh; touch /tmp/busy2 /tmp/busy3; cp .carry/next/sanitizer.txt $O/sanitizer.txt
TT="python3 scripts/sanitize/tools.py --sanitizer $PWD/.carry/next/sanslot.sh --limit 420 --commit $(cat .carry/commit) --out $O/sanitizer.txt --missing"
( export GPUS="0 1 2 3" SLOTS=$SL FUSEDOPS_COMMIT=; timeout 560 $TT --jobs $((3*SL)) --budget ${SAN:-500} > $L/san1.txt 2>&1
  left=$((525-SECONDS)); [ $left -gt 40 ] && SLOTS=4 timeout $left $TT --jobs 12 --budget $((left-10)) > $L/san2.txt 2>&1 ) &
( export CUDA_VISIBLE_DEVICES=3; set -f
  if [ $K = h100 ]; then
  timeout 330 nice -n -10 python3 -m fusedops bench pointnet --peers eager,compile --case s[!w]* --out $O/pn/ > $L/pn2.txt 2>&1; echo "pn2 rc $? $SECONDS"
  timeout 330 nice -n -10 python3 -m fusedops bench pointnet --peers eager,compile --case [!s]* --out $O/pn/ > $L/pn1.txt 2>&1; echo "pn1 rc $? $SECONDS"
  else
  timeout 300 nice -n -10 python3 -m fusedops bench conv --pass step --peers eager,compile --dtype bf16 --case N* --out $O/conv/ > $L/cv.txt 2>&1; echo "conv step rc $? $SECONDS"; grep "ours [0-9]" $L/cv.txt | sed 's/.*conv //' | cut -c1-110
  PYTHONPATH=$PYTHONPATH:/tmp/fe timeout 150 python3 .carry/next/conv_forms.py infer > $L/forms.txt 2>&1; echo "forms rc $? $SECONDS"
  fi; set +f; rm -f /tmp/busy3
) > $L/l3.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=2
  timeout 70 python3 -m fusedops check > $L/check.txt 2>&1; echo "check rc $? $SECONDS"
  timeout -s INT -k 10 100 python3 -m pytest -q -n 10 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_thin.py tests/rows tests/reduce tests/epilogue > $L/t.txt 2>&1; echo "tests rc $? $SECONDS"; grep -E "FAILED|ERROR| passed| failed" $L/t.txt | cut -c1-160
  bash .carry/next/fp8rows.sh; echo "fp8 $SECONDS"
  timeout 240 python3 -m pytest -v -m "" -p no:cacheprovider tests/users/test_faults.py tests/contract/test_out_of_memory.py > $L/faults.txt 2>&1; echo "faults rc $? $SECONDS"
  rm -f /tmp/busy2
) > $L/l2.txt 2>&1 &
finish ${LIMIT:-548}
for f in l2 l3 check; do echo "##### $f"; cut -c1-150 $L/$f.txt | tail -50; done; tail -3 $L/faults.txt; cat $L/san1.txt $L/san2.txt | grep -v "^  " | cut -c1-130
head -1 $O/sanitizer.txt
pack
