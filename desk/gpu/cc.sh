#!/usr/bin/env bash
# cc.sh FILE.cu [sm_90a|sm_80] [out.o]: compile with the module's flags, print registers and spills
f=$(realpath $1); arch=${2:-sm_90a}; out=${3:-/tmp/cc_$$.o}
root=$(cd $(dirname $f) && git rev-parse --show-toplevel)
cd $root
python3 - "$f" "$arch" "$out" "$root" <<'P' > /tmp/cc_$$.cmd
import json,sys,glob,shlex,os
f,arch,out,root=sys.argv[1:]
db=json.load(open(glob.glob('/work/main/build/cp312*/compile_commands.json')[0]))
c=[e for e in db if e['file'].endswith('.cu') and ('instances' in f)==('instances' in e['file'])][0]['command']
a=shlex.split(c); n=[];skip=False
i=[k for k,x in enumerate(a) if x.endswith('nvcc')][0]; a=a[i:]
k=0
while k<len(a):
    x=a[k]
    if x in('-o','-c','-MF','-MT'): k+=2; continue
    if x in('-MD',) or x.startswith('--generate-code') or x.startswith('-gencode') : k+=1; continue
    if x=='-x': k+=2; continue
    n.append(x.replace('/work/main/build','@B@').replace('-I/work/main','-I'+root).replace('@B@','/work/main/build') if x.startswith('-I') and '.venv' not in x else x); k+=1
n+=[f'-gencode=arch=compute_{arch[3:]},code=sm_{arch[3:]}','-Xptxas','-v','-x','cu','-c',f,'-o',out]
print(shlex.join(n))
P
nice -n 10 bash /tmp/cc_$$.cmd 2>&1 | c++filt | grep -vE "^$" | tail -${LINES_OUT:-60}; rm -f /tmp/cc_$$.cmd
