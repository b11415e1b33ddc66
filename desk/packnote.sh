#!/usr/bin/env bash
# packnote.sh MAIN BRANCHES...: /tmp/pn/s.bundle (one commit a branch on MAIN's merge base), with dictionary: /tmp/pn/s.zst
set -e
main=$1; shift
rm -rf /tmp/pn; mkdir -p /tmp/pn; git clone -q --bare /work/main /tmp/pn/bt; cd /tmp/pn/bt
refs=
for b in "$@"; do mb=$(git merge-base $main $b); c=$(GIT_AUTHOR_DATE="2026-11-26T18:00" GIT_COMMITTER_DATE="2026-11-26T18:00" git -c user.name=n -c user.email=n@n commit-tree $b^{tree} -p $mb -m $b); git update-ref refs/heads/s/$b $c; refs="$refs s/$b"; done
git config core.compression 0; git config pack.compression 0; git config pack.window 250; git config pack.depth 250
git bundle create -q ../s.bundle $refs ^$main
git ls-tree -r $main --name-only csrc python tests perf docs CHANGELOG.md | grep -vE '\.(csv|svg|png|txt)$' > ../names
xargs -I{} git show $main:{} < ../names > ../dict
cd ..; zstd -q -f --ultra -22 --long=27 --single-thread --zstd=targetLength=4096,chainLog=28 --patch-from=dict s.bundle -o s.zst; ls -l s.bundle dict s.zst
