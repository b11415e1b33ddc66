# lead2: fp32 softmax old against new; profile of point models
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); mkdir -p $OUT/lead
for w in 1 2; do for p in $OLD $NEW; do PYTHONPATH=$p:$SITE timeout 60 python3 -m fusedops bench norm --case "*softmax*" --dtype fp32 --peers eager --budget 25 2>&1 | grep -E "ours [0-9]" | sed 's/.*norm //' | cut -c1-100 > $OUT/lead/sm_$(basename $p)_$w.txt; done; done
paste -d' ' <(awk '{print $1,$2,$3,$5}' $OUT/lead/sm_fo2_2.txt) <(awk '{print $5}' $OUT/lead/sm_fo_2.txt) | head -40
timeout 60 python3 $here/points_prof.py $OUT/lead/prof.txt 2>&1 | cut -c1-140
