. .carry/lanes.sh
w() { CUDA_VISIBLE_DEVICES=$1 timeout $4 nice -n -10 python3 -m fusedops bench wild --family $2 --count $3 --seed 31127 --out $O/wild$1/ >> $O/wild$1.txt 2>&1; echo "wild $2 rc $? $SECONDS"; }
md() { CUDA_VISIBLE_DEVICES=$1 timeout $3 nice -n -10 python3 -m fusedops bench models --pass step --case "$2/*" --turns /tmp/turns$1 --out $O/m$1/ > $O/md_$2.txt 2>&1; echo "$2 rc $? $SECONDS"; tail -5 $O/md_$2.txt | cut -c1-400; }
( w 0 linear,gated 110 150; w 0 reduce,norm 60 80; w 0 softmax,scan 60 60; md 0 dlrm 90 ) &
( w 1 mlp,skinny 110 150; w 1 elementwise,segment,stencil 50 80; w 1 knn,ball,fps,group,interpolate 25 60
  export CUDA_VISIBLE_DEVICES=1; timeout -s INT -k 15 60 python3 -m pytest -q -n 8 -p no:cacheprovider -m gpu tests/integration/test_inductor_saved.py tests/modules/test_fast_attention.py tests/bench/test_bench_models.py > $O/tests.txt 2>&1; tail -6 $O/tests.txt | cut -c1-250; md 1 pointnet2_bn 80 ) &
finish ${ALL:-430}
for i in 0 1; do python3 -m fusedops bench --summary $O/wild$i/wild.csv 2>/dev/null | grep wild | cut -c1-150; done
python3 -m fusedops bench --summary $O/m0/models.csv 2>/dev/null | grep models | head -4
pack
