. .carry/lanes.sh
grep -q H100 <<< "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)" && K=h100 || K=h200
touch /tmp/busy3; chmod +x .carry/next/sanslot.sh
( GPUS="0 1 2 3" SLOTS=12 FUSEDOPS_COMMIT= timeout 520 python3 scripts/sanitize/tools.py --sanitizer $PWD/.carry/next/sanslot.sh --jobs 48 --limit 500 --budget ${SAN:-480} --commit $(cat .carry/commit) --out $O/sanitizer.txt ) > $L/san.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=3; set -f
  timeout 330 nice -n -10 python3 -m fusedops bench pointnet --peers eager,compile --case [!s]* --out $O/pn/ > $L/pn1.txt 2>&1; echo "pn1 rc $? $SECONDS"
  timeout 330 nice -n -10 python3 -m fusedops bench pointnet --peers eager,compile --case s[!w]* --out $O/pn/ > $L/pn2.txt 2>&1; echo "pn2 rc $? $SECONDS"
  set +f
  timeout 60 python3 -m fusedops check > $L/check.txt 2>&1; echo "check rc $?"; rm -f /tmp/busy3
  timeout 200 python3 -m pytest -v -m "" -p no:cacheprovider tests/users/test_faults.py tests/contract/test_out_of_memory.py > $L/faults.txt 2>&1; echo "faults rc $? $SECONDS"
) > $L/l3.txt 2>&1 &
finish ${LIMIT:-545}
for f in l3 check faults san; do echo "##### $f"; cut -c1-150 $L/$f.txt | tail -40; done; tail -5 $L/pn*.txt
head -1 $O/sanitizer.txt
pack
