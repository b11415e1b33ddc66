set -f; timeout 70 python3 -m fusedops bench fp8 --case *norm/* --out $OUT/fp8rows/ > $OUT/fp8rows.txt 2>&1; grep "ours [0-9]" $OUT/fp8rows.txt | sed 's/.*fp8 //' | cut -c1-110
