# points san: 60 s
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for tool in racecheck memcheck; do timeout 80 compute-sanitizer --tool $tool --error-exitcode 1 python3 "$here/points.py" san > $OUT/points_$tool.txt 2>&1; echo "$tool rc $?: $(tail -1 $OUT/points_$tool.txt)"; grep -E "Race|ERROR|Error" $OUT/points_$tool.txt | sort | uniq -c | head -5; done
