mkdir -p $OUT/w3; set -f
for f in elementwise norm; do timeout 60 python3 -m fusedops bench wild --family $f --seed 2611 --count 300 --budget 40 --out $OUT/w3/ > $OUT/w3/$f.txt 2>&1; grep -A10 "over the best peer" $OUT/w3/$f.txt | cut -c1-150; done
