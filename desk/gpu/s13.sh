. .carry/lanes.sh
sed -i 's/D, H, R = .*/D, H, R = 64, 128, 128/' .carry/next/host_ops.py
ph() { timeout 150 env CUDA_VISIBLE_DEVICES=$1 CTX=1 TORCHINDUCTOR_COMPILE_THREADS=6 TORCHINDUCTOR_CACHE_DIR=/tmp/ind$1 nice -n -10 python3 .carry/next/prof_host.py /tmp/turns$1 $2 $3 $4 $5 $6 > $O/ph_$2.txt 2>&1; echo "$2 rc $? $SECONDS"; }
( ph 0 dlrm compile inductor inductor- fuse_compile; ph 0 gemma2 compile_whole inductor inductor-; ph 0 mixtral compile_whole inductor inductor- ) &
( CUDA_VISIBLE_DEVICES=1 python3 .carry/next/host_ops.py > $O/host_ops.txt 2>&1; ph 1 whisper compile_whole inductor inductor- fuse_compile; ph 1 t5 compile_whole inductor inductor- ) &
wait
( export CUDA_VISIBLE_DEVICES=0; timeout -s INT -k 15 120 python3 -m pytest -q -n 14 --maxfail=40 -p no:cacheprovider -m "gpu and not slow" tests/points/test_edge_rows.py tests/modules/convs tests/modules/test_fast_attention.py > $O/tests.txt 2>&1; tail -3 $O/tests.txt | cut -c1-150 ) &
( CUDA_VISIBLE_DEVICES=1 timeout 100 nice -n -10 python3 -m fusedops bench models --pass step --case "pointnet2_bn/*" --turns /tmp/turns1 --out $O/m/ > $O/pbn.txt 2>&1; tail -5 $O/pbn.txt | cut -c1-300 ) &
finish ${ALL:-480}
grep -h wall $O/ph_*.txt | cut -c1-200
cat $O/host_ops.txt
pack
