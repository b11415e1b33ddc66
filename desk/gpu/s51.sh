# H100: where the graph pass's ConvNeXt loses; rows of layers in evaluation.
. .carry/lanes.sh
kill $IRPID 2>/dev/null
export PYTHONPATH=$NEW:$SITE:/tmp/fe
for v in a b c f; do timeout 80 python3 .carry/next/cx_prof.py $v > $O/cx_$v.txt 2>&1 & done; wait $(jobs -p | tail -4); for v in a b c f; do grep -A16 VARIANT $O/cx_$v.txt | cut -c1-120; done; echo "cx $SECONDS"
C() { timeout -s INT -k 5 $1 nice -n -10 python3 -m fusedops bench conv --dtype $2 --case "$3" --pass $4 --peers $5 --out $O/conv/ > $O/conv_$2_$4.txt 2>&1; echo "conv $2 $3 rc $? $SECONDS"; tail -2 $O/conv_$2_$4.txt | cut -c1-150; }
C $(( (225-SECONDS)/2 )) bf16 'N64*' infer eager,cudnn
C $((222-SECONDS)) fp16 'N64*' infer eager,cudnn
pack
