// Epilogue visitor trees of the TF32 kernels (sm90_tf32_gemm.cuh): D = act(acc + bias), optionally
// storing the pre-activation.
#pragma once

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp>

#include "csrc/common/device/activation.cuh"
#include "csrc/cutlass/problem.h"

namespace fusedops::sm90 {

namespace fusion = cutlass::epilogue::fusion;

// The compute node that applies the run-time activation to a fragment of pre-activations.
template <Accuracy kAccuracy>
struct ActivationNode {
  template <class T>
  struct Fn {
    struct Arguments {
      Activation activation = Activation::kNone;
    };
  };

  template <class T, int N>
  struct Fn<cutlass::Array<T, N>> {
    template <class Arguments>
    CUTLASS_DEVICE cutlass::Array<T, N> operator()(cutlass::Array<T, N> z,
                                                   const Arguments& arguments) const {
      activate_array<kAccuracy>(arguments.activation, z);
      return z;
    }
  };
};

// CtaTile: the tile of one CTA, stored in subtiles of EpilogueTile. Element: of bias, D and the
// stored pre-activation.
template <Epilogue kEpilogue, class CtaTile, class EpilogueTile, class Schedule, class Element>
struct FusionTree {
  static constexpr auto kRound = cutlass::FloatRoundStyle::round_to_nearest;
  static constexpr Accuracy kAccuracy = kAccuracyOf<Element>;

  using BiasStride = cute::Stride<cute::_0, cute::_1, int64_t>;
  using Preact = fusion::Sm90EVT<fusion::Sm90Compute<cutlass::plus, float, float, kRound>,
                                 fusion::Sm90RowBroadcast<0, CtaTile, Element, float, BiasStride>,
                                 fusion::Sm90AccFetch>;

  using Descriptor =
      cutlass::epilogue::collective::detail::EpilogueDescriptor<CtaTile, EpilogueTile, void,
                                                                Element, Schedule>;
  using AuxDescriptor =
      cutlass::epilogue::collective::detail::AuxStoreDescriptor<Descriptor,
                                                                cutlass::layout::RowMajor, Element>;
  using StoredPreact =
      fusion::Sm90EVT<fusion::Sm90AuxStore<AuxDescriptor::Stages, typename Descriptor::EpilogueTile,
                                           Element, kRound, typename AuxDescriptor::Stride,
                                           typename AuxDescriptor::SmemLayoutAtom,
                                           typename AuxDescriptor::CopyOpR2S>,
                      Preact>;

  template <class Child>
  using Activate = fusion::Sm90EVT<
      fusion::Sm90Compute<ActivationNode<kAccuracy>::template Fn, Element, float, kRound>, Child>;

  using type =
      cute::conditional_t<kEpilogue == Epilogue::kFused, Activate<Preact>, Activate<StoredPreact>>;

  static typename type::Arguments arguments(const GemmProblem& problem) {
    typename Preact::Arguments preact{
        {static_cast<const Element*>(problem.bias), Element(0), {}}, {}, {}};
    if constexpr (kEpilogue == Epilogue::kFused) {
      return {preact, {problem.activation}};
    } else {
      return {{preact, {static_cast<Element*>(problem.preact), {problem.ldd, cute::_1{}, 0}}},
              {problem.activation}};
    }
  }
};

}  // namespace fusedops::sm90
