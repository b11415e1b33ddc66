#!/usr/bin/env bash
# snap2.sh [WT]: snapshot of worktree WT (default /work/wt/next) as fo, of main's commit and module as fo2, into /work/main/.carry
set -e; W=${1:-/work/wt/next}; M=/work/main
so=build/cp312-cp312-linux_x86_64/_C.cpython-312-x86_64-linux-gnu.so
for s in $W/$so $M/$so; do [ $(stat -c %s $s) -gt 20000000 ] || { echo "CPU module $s!"; exit 1; }; done
rm -rf /tmp/mods; mkdir -p /tmp/mods; cp $W/$so /tmp/mods/; cp $M/$so /tmp/mods/variant.so; strip /tmp/mods/*.so
(cd /tmp/mods; tar c *.so) | xz -T1 --lzma2=preset=2,dict=256MiB > $M/.carry/mods.tar.xz
cd $W; git archive HEAD python tests scripts csrc cmake perf examples docs pyproject.toml README.md CHANGELOG.md Makefile CMakeLists.txt Dockerfile .dockerignore packaging | xz -T2 -3 > $M/.carry/tree.txz
git -C $M archive main python | xz -T2 -3 > $M/.carry/py_old.txz
git rev-parse --short=7 HEAD > $M/.carry/commit; ls -la $M/.carry/*.xz $M/.carry/*.txz; cat $M/.carry/commit; git status --short | head
