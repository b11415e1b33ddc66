// Schemas: The template op.
#pragma once

namespace fusedops {

inline constexpr const char* kTemplateSchemas[] = {
    // The template op: x * scale.
    "template_scale(Tensor x, float scale) -> Tensor",
};

}  // namespace fusedops
