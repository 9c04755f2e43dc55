#include "cuda/jit/config_text.h"

#include <type_traits>
#include <utility>

#include "core/error.h"

namespace tilewise::cuda {
namespace {

std::string value_text(Family x) { return cat("Family::", name_of(x)); }
std::string value_text(Kernel x) { return cat("Kernel::", name_of(x)); }
std::string value_text(Element x) { return cat("Element::", name_of(x)); }
std::string value_text(int x) { return cat(x); }
std::string value_text(bool x) { return x ? "true" : "false"; }

}  // namespace

const char* name_of(Family family) {
  switch (family) {
    case Family::mma: return "mma";
    case Family::wgmma: return "wgmma";
    case Family::unfused: return "unfused";
    case Family::fa1: return "fa1";
    case Family::common: return "common";
  }
  fail(TW_INTERNAL, "unnamed kernel family ", int(family));
}

const char* name_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::forward: return "forward";
    case Kernel::backward: return "backward";
    case Kernel::backward_dq: return "backward_dq";
    case Kernel::backward_prepare: return "backward_prepare";
    case Kernel::backward_convert: return "backward_convert";
    case Kernel::backward_dbias: return "backward_dbias";
    case Kernel::backward_sink: return "backward_sink";
    case Kernel::backward_statistics: return "backward_statistics";
    case Kernel::backward_repair: return "backward_repair";
    case Kernel::wide_forward: return "wide_forward";
    case Kernel::wide_dkv: return "wide_dkv";
    case Kernel::wide_dq: return "wide_dq";
    case Kernel::wide_dbias: return "wide_dbias";
    case Kernel::combine_splits: return "combine_splits";
    case Kernel::product_nt: return "product_nt";
    case Kernel::product_nn: return "product_nn";
    case Kernel::product_tn: return "product_tn";
    case Kernel::softmax: return "softmax";
    case Kernel::softmax_backward: return "softmax_backward";
    case Kernel::uncovered: return "uncovered";
    case Kernel::product_rate: return "product_rate";
  }
  fail(TW_INTERNAL, "unnamed kernel ", int(kernel));
}

const char* name_of(Element element) {
  switch (element) {
    case Element::fp32: return "fp32";
    case Element::fp16: return "fp16";
    case Element::bf16: return "bf16";
  }
  fail(TW_INTERNAL, "unnamed element type ", int(element));
}

std::string config_text(const Config& config) {
  std::string text;
  for_each_field(config, [&](const char* name, const auto& value) {
    text += cat(text.empty() ? "Config{." : ", .", name, " = ", value_text(value));
  });
  return text + "}";
}

std::string config_summary(const Config& c) {
  std::string text = cat(name_of(c.family), " ", name_of(c.kernel), " ", name_of(c.element), " d", c.d, " dv",
                         c.dv, " tile ", c.Br, "x", c.Bc, ", ", c.warps, " warps, ", c.stages,
                         c.stages == 1 ? " stage" : " stages");
  const char* separator = "; ";
  for_each_field(c, [&](const char* name, const auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, bool>)
      if (value) text += cat(std::exchange(separator, ", "), name);
  });
  return text;
}

}  // namespace tilewise::cuda
