#include <torch/csrc/stable/tensor.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <chrono>
using torch::stable::Tensor;
template<class F> double t(F f){double best=1e9;for(int r=0;r<20;r++){auto a=std::chrono::steady_clock::now();for(int i=0;i<20000;i++)f();auto b=std::chrono::steady_clock::now();best=std::min(best,std::chrono::duration<double>(b-a).count()/20000*1e6);}return best;}
int64_t noop(const Tensor& x){return 0;}
Tensor pass(const Tensor& x,const Tensor&w,const std::optional<Tensor>&b,int64_t a,bool c){return x;}
void bench(const Tensor& x){
  std::vector<int64_t> s{4,16};
  printf("new_empty %.3f\n", t([&]{auto y=torch::stable::new_empty(x,{4,16});}));
  printf("new_empty dtype %.3f\n", t([&]{auto y=torch::stable::new_empty(x,{4,16},x.scalar_type());}));
  printf("empty %.3f\n", t([&]{auto y=torch::stable::empty({4,16},x.scalar_type());}));
  printf("empty_like %.3f\n", t([&]{auto y=torch::stable::empty_like(x);}));
  printf("empty_strided %.3f\n", t([&]{int64_t sz[2]={4,16},st[2]={16,1};AtenTensorHandle h;int32_t dt,dev,ix;aoti_torch_get_dtype(x.get(),&dt);aoti_torch_get_device_type(x.get(),&dev);aoti_torch_get_device_index(x.get(),&ix);aoti_torch_empty_strided(2,sz,st,dt,dev,ix,&h);Tensor y(h);}));
  printf("aten_new_empty %.3f\n", t([&]{int64_t sz[2]={4,16};AtenTensorHandle h;int32_t dt,dev,ix,lay;aoti_torch_get_dtype(x.get(),&dt);aoti_torch_get_device_type(x.get(),&dev);aoti_torch_get_layout(x.get(),&lay);aoti_torch_get_device_index(x.get(),&ix);aoti_torch_aten_new_empty(x.get(),sz,2,&dt,&lay,&dev,ix,nullptr,&h);Tensor y(h);}));
  printf("aten_new_empty nulls %.3f\n", t([&]{int64_t sz[2]={4,16};AtenTensorHandle h;int32_t dt,dev,ix,lay;aoti_torch_get_dtype(x.get(),&dt);aoti_torch_aten_new_empty(x.get(),sz,2,&dt,nullptr,nullptr,0,nullptr,&h);Tensor y(h);}));
  printf("sizes %.3f\n", t([&]{volatile auto y=x.sizes().size();}));
  printf("size0 %.3f\n", t([&]{volatile auto y=x.size(0);}));
  printf("scalar_type %.3f\n", t([&]{volatile auto y=x.scalar_type();}));
  printf("is_contig %.3f\n", t([&]{volatile auto y=x.is_contiguous();}));
  printf("data_ptr %.3f\n", t([&]{volatile auto y=x.data_ptr();}));
  printf("device %.3f\n", t([&]{volatile auto y=x.device().index();}));
}
STABLE_TORCH_LIBRARY(mb,m){m.def("noop(Tensor x)->int");m.def("through(Tensor x,Tensor w,Tensor? b,int a,bool c)->Tensor");m.def("bench(Tensor x)->()");}
STABLE_TORCH_LIBRARY_IMPL(mb,CPU,m){m.impl("noop",TORCH_BOX(&noop));m.impl("through",TORCH_BOX(&pass));m.impl("bench",TORCH_BOX(&bench));}
