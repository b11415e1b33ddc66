#!/usr/bin/env bash
# take.sh BRANCH...: cherry-picks onto next what it has not
cd /work/wt/next || exit 1
for b in "$@"; do
  c=$(git cherry next $b | awk '$1=="+"{print $2}')
  [ -z "$c" ] && { echo "$b: nothing"; continue; }
  if echo $c | xargs git cherry-pick --allow-empty > /tmp/take_$b.log 2>&1; then echo "$b: $(echo "$c" | wc -l) commits"; else echo "$b CONFLICT"; git status --short | grep -E "^(UU|AA|DU|UD|UA|AU)"; exit 1; fi
done
git log --oneline -1
