// Schemas: convolutions with channels behind: depthwise ones, 1x1, those of images of few channels.
#pragma once

namespace fusedops {

// x (N, H, W, C), weight (C, kh, kw), y, residual and dy (N, H', W', C); conv_bias and the vectors
// of the norm (C,), of x's dtype or float32.
inline constexpr const char* kConvSchemas[] = {
    // y = act((conv(x, weight) + conv_bias - mean) / sqrt(var + eps) * bn_weight + bias +
    // residual),
    // where what is None is left out.
    "depthwise_conv(Tensor x, Tensor weight, Tensor? conv_bias, Tensor? mean, Tensor? var, "
    "Tensor? bn_weight, Tensor? bias, Tensor? residual, int stride_h, int stride_w, int pad_h, "
    "int pad_w, float eps, int activation) -> Tensor",

    // (dx, dweight) of conv(x, weight); what is not needed comes back with shape (0,).
    "depthwise_conv_backward(Tensor dy, Tensor x, Tensor weight, int stride_h, int stride_w, "
    "int pad_h, int pad_w, bool need_dx, bool need_dweight) -> (Tensor, Tensor)",

    // y (N, H', W', O) as of depthwise_conv, for weight (O, kh, kw, C) and vectors (O,).
    "first_conv(Tensor x, Tensor weight, Tensor? conv_bias, Tensor? mean, Tensor? var, "
    "Tensor? bn_weight, Tensor? bias, int stride_h, int stride_w, int pad_h, int pad_w, "
    "float eps, int activation) -> Tensor",

    // y (N, H, W, O) as of first_conv, for weight (O, 3, 3, C), stride 1 and a border of 1.
    "image_conv(Tensor x, Tensor weight, Tensor? conv_bias, Tensor? mean, Tensor? var, "
    "Tensor? bn_weight, Tensor? bias, float eps, int activation) -> Tensor",

    // dx of image_conv's convolution; x is read for its sizes alone.
    "image_conv_backward(Tensor dy, Tensor x, Tensor weight) -> Tensor",

    // y (..., O) as of depthwise_conv, for x (..., C), weight (O, C), vectors (O,) and residual
    // (..., O).
    "pointwise_conv(Tensor x, Tensor weight, Tensor? conv_bias, Tensor? mean, Tensor? var, "
    "Tensor? bn_weight, Tensor? bias, Tensor? residual, float eps, int activation) -> Tensor",

    // dx of first_conv's convolution; x is read for its sizes alone.
    "first_conv_image(Tensor dy, Tensor x, Tensor weight, int stride_h, int stride_w, int pad_h, "
    "int pad_w) -> Tensor",

    // dweight of first_conv's convolution.
    "first_conv_weight(Tensor dy, Tensor x, Tensor weight, int stride_h, int stride_w, int pad_h, "
    "int pad_w) -> Tensor",
};

}  // namespace fusedops
