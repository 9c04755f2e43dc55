// What the cases of wide_test need switched on; the planner's tiles are added where the kernels are compiled.
#pragma once

#include "kernels/shared/config.h"

namespace tilewise {

inline constexpr Config kWideFeatures[] = {
    {.element = Element::bf16},
    {.element = Element::bf16, .masked = true},
    {.element = Element::bf16, .boolean_mask = true, .varlen = true, .strided = true},
    {.element = Element::fp16, .masked = true, .bias = true, .dropout = true, .dbias = true},
    {.element = Element::fp16,
     .masked = true,
     .softcap = true,
     .alibi = true,
     .bias = true,
     .boolean_mask = true,
     .dropout = true,
     .varlen = true,
     .strided = true,
     .dbias = true},
    {.element = Element::fp32, .masked = true},
    {.element = Element::fp32,
     .masked = true,
     .alibi = true,
     .bias = true,
     .dropout = true,
     .varlen = true,
     .strided = true,
     .dbias = true},
    {.element = Element::fp32,
     .masked = true,
     .softcap = true,
     .dropout = true,
     .varlen = true,
     .strided = true},
    {.element = Element::fp32, .softcap = true, .bias = true, .varlen = true, .strided = true, .dbias = true},
};

}  // namespace tilewise
