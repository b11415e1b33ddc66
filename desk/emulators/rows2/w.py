import re
s=open('/tmp/rows_emu/build.py').read()
