# expected seconds: 30. Profile only (any tree): kernels of SSG, MSG, set abstraction in graph replays, in order; whole text in $OUT/points_prof.txt.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
OUT=${OUT:-/tmp/points_prof}; mkdir -p "$OUT"
timeout 90 python3 "$here/points_prof.py" "$OUT/points_prof.txt" 2>&1 | tail -12
cat "$OUT/points_prof.txt" > /work/notes/gpu/out/points_prof_full.txt 2>/dev/null
true
