from fit5 import *
P=dict(u2=.1,u3=1,v=0,w=1,c4=0,c8=.3)
h1=load('/tmp/o3/o/sk8.txt')
print("h200",run(P,h2,1.0)); print("h100",run(P,h1,1.0,True)); print("h100 dr .75",run(P,h1,.75,True))
