# H200: models of branch next (messages, convolutions, groups, masks in the graph pass), in lanes.
export SITE=/tmp/site
. .carry/lanes.sh
export PYTHONPATH=$NEW:$SITE
rm -f /tmp/turns
lane() { n=$1; shift; for m in "$@"; do [ $SECONDS -gt 500 ] && break; timeout -s INT -k 5 $((580-SECONDS)) python3 -m fusedops bench models --case "${m%%:*}/*" --pass step --turns /tmp/turns --peers eager,compile,compile_whole,compile_graphs${m##*:} --out $O/models_$n/ >> $O/models_$n.txt 2>&1; echo "model $m rc $? $SECONDS"; done; }
lane a t5: gin: & lane b mixtral: swin_base: & lane c pointnet2_bn: pointnet2: tv_swin_base: & lane d whisper: dlrm: &
wait
for m in "resnet50 128 bf16 g" "mobilenet_v2 128 bf16 g" "resnet50 128 fp16"; do [ $SECONDS -lt 480 ] && timeout 100 python3 .carry/next/rn_ab.py $m > "$O/rn_${m// /_}.txt" 2>&1; grep -E "RESULT|^{|Error" "$O/rn_${m// /_}.txt" | cut -c1-250; done
timeout 60 python3 .carry/next/sk8.py h200 > $O/sk8.txt 2>&1; cut -c1-330 $O/sk8.txt
pack
