# prep.sh WORKTREE ROUND FILES...: module + tree of a worktree and scripts of a round into /work/main/.carry
set -e; W=$1; R=$2; shift 2; M=/work/main; so=build/cp312-cp312-linux_x86_64/_C.cpython-312-x86_64-linux-gnu.so
rm -rf /tmp/mods; mkdir -p /tmp/mods; cp $W/$so /tmp/mods/; strip /tmp/mods/*.so
if [ -n "$OLDSO" ]; then cp $OLDSO /tmp/mods/variant.so; strip /tmp/mods/variant.so; fi
(cd /tmp/mods; tar c *.so) | xz -T1 --lzma2=preset=2,dict=400MiB > $M/.carry/mods.tar.xz
cd $W; git archive HEAD python tests scripts csrc cmake perf examples docs pyproject.toml README.md CHANGELOG.md Makefile CMakeLists.txt Dockerfile .dockerignore packaging | xz -T2 -3 > $M/.carry/tree.txz
git rev-parse --short=7 HEAD > $M/.carry/commit; cat $M/.carry/commit
cd /work/notes/gpu; cp lanes.sh setup.sh ir_here.sh $M/.carry/; cp $R $M/.carry/round.sh; rm -rf $M/.carry/next; mkdir -p $M/.carry/next; cp *.sh *.py *.cu $M/.carry/next/ 2>/dev/null || true; for f in "$@"; do cp -r $f $M/.carry/next/; done
du -sm $M/.carry $M/.whl; ls -la $M/.carry | awk '{print $5,$9}'
