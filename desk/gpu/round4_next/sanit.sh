H=.carry/next; S="compute-sanitizer --error-exitcode 97"; export PYTHONPATH=$PYTHONPATH:/tmp/fe OMP_NUM_THREADS=1
go() { n=$1; shift; (timeout 100 "$@" > $OUT/S_$n.txt 2>&1; echo "$n rc $? $(grep -E 'SUMMARY|calls,' $OUT/S_$n.txt | tail -2 | tr '\n' ' ')") & }
go points_race $S --tool racecheck python3 $H/points.py san; go points_mem $S --tool memcheck python3 $H/points.py san
for f in pw bn; do go conv_mem_$f $S --tool memcheck python3 $H/conv.py small_$f; done; go conv_race_pw $S --tool racecheck python3 $H/conv.py small_pw
for t in memcheck racecheck; do go pack_$t $S --tool $t python3 scripts/sanitize unaligned $([ $t = racecheck ] && echo --no-clusters); done; wait
