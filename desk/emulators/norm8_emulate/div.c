#include <math.h>
#include <stdio.h>
#include <stdint.h>
#include <string.h>
static float F(uint32_t u){float f;memcpy(&f,&u,4);return f;} static uint32_t U(float f){uint32_t u;memcpy(&u,&f,4);return u;}
static float rq(float a,float b,float r){float q=a*r;return fmaf(fmaf(-q,b,a),r,q);}
int main(){ long bad=0,badi=0;
 float largest[2]={448.f,57344.f};
 int exps[]={27,28,29,40,100,126,127,128,136,140,180,230,250,252,253,254};
 for(int l=0;l<2;l++){ uint32_t el=U(largest[l])&0x7f800000u; float rec=F(U(1/1.75f)+0x3f800000u-el);
  for(unsigned e=0;e<sizeof exps/sizeof*exps;e++) for(uint32_t m=0;m<1u<<23;m++){ float x=F(m|(uint32_t)exps[e]<<23);
   if(U(rq(x,largest[l],rec))!=U(x/largest[l])) bad++; }
  for(unsigned e=0;e<sizeof exps/sizeof*exps;e++){ if(e>0&&e<12&&e!=6)continue; for(uint32_t m=0;m<1u<<23;m++){ uint32_t b=m|(uint32_t)exps[e]<<23; float mant=F(m|0x3f800000u); float want=largest[l]/F(b); float r0=1/mant;
   for(int d=-2;d<=2;d++){ float y=F(U(r0)+d); y=fmaf(fmaf(-mant,y,1.f),y,y); float q=rq(1.75f,mant,y); uint32_t inv=U(q)-(b&0x7f800000u)+el; if(inv!=U(want)){ badi++; if(badi<5)printf("m %x d %d got %a want %a\n",m,d,F(inv),want);} } } }
 }
 printf("scale wrong %ld, inverse wrong %ld\n",bad,badi); }
