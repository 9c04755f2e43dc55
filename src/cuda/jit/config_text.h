// A Config as C++ text: what the JIT compiles, hashes and shows.
#pragma once

#include <string>

#include "kernels/shared/config.h"

namespace tilewise::cuda {

// Calls f(name, member) for every member in declaration order. The structured binding stops compiling when
// Config gains a member that is not listed here.
template <class AnyConfig, class F>
void for_each_field(AnyConfig& config, F&& f) {
  auto& [family, kernel, element, d, dv, Br, Bc, warps, stages, min_blocks, q_registers, warps_s, warps_dkv,
         warps_dq, masked, softcap, alibi, bias, boolean_mask, dropout, varlen, strided, dbias,
         deterministic] = config;
  f("family", family), f("kernel", kernel), f("element", element);
  f("d", d), f("dv", dv), f("Br", Br), f("Bc", Bc), f("warps", warps), f("stages", stages),
      f("min_blocks", min_blocks), f("q_registers", q_registers);
  f("warps_s", warps_s), f("warps_dkv", warps_dkv), f("warps_dq", warps_dq);
  f("masked", masked), f("softcap", softcap), f("alibi", alibi), f("bias", bias),
      f("boolean_mask", boolean_mask);
  f("dropout", dropout), f("varlen", varlen), f("strided", strided), f("dbias", dbias),
      f("deterministic", deterministic);
}

const char* name_of(Family family);
const char* name_of(Kernel kernel);
const char* name_of(Element element);

// "Config{.family = Family::mma, .kernel = Kernel::forward, ..., .varlen = false, .deterministic = false}"
std::string config_text(const Config& config);

// For people: "mma forward bf16 d128 dv128 tile 128x64, 4 warps, 1 stage; masked, dropout"
std::string config_summary(const Config& config);

}  // namespace tilewise::cuda
