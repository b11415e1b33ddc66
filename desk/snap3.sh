set -e; W=/work/wt/next; M=/work/main; so=build/cp312-cp312-linux_x86_64/_C.cpython-312-x86_64-linux-gnu.so
rm -rf /tmp/mods; mkdir -p /tmp/mods; cp $W/$so /tmp/mods/; strip /tmp/mods/*.so; (cd /tmp/mods; tar c *.so) | xz -T2 -2 > $M/.carry/mods.tar.xz
cd $W; git archive HEAD python tests scripts csrc cmake perf examples docs pyproject.toml README.md CHANGELOG.md Makefile CMakeLists.txt Dockerfile .dockerignore packaging | xz -T2 -3 > $M/.carry/tree.txz
git rev-parse --short=7 HEAD > $M/.carry/commit; cat $M/.carry/commit; git status --short | grep -v '^??' | head -3
