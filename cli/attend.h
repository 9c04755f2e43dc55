// What attend and grad share: the tensors of a problem, read from files and handed to the library.
#pragma once

#include <string>

#include "cli/io/operands.h"
#include "cli/options.h"

namespace CLI {
class App;  // of CLI11, whose one header takes seconds to compile
}

namespace tilewise::cli {

struct TensorOptions {
  std::string tensors, q, k, v, bias, mask, alibi, sink;
  std::string cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, dtype;
};

void add_tensor_options(CLI::App& app, TensorOptions& options);

// The forward's operands in host memory, and the tw_attention that views them.
struct Operands {
  HostTensor q, k, v, bias, mask, alibi, sink, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  HostTensor out, lse;

  Operands(Reader& reader, const TensorOptions& options);
  // Views without data for out and lse: what the library must accept before their memory is allocated.
  tw_attention problem(const tw_options& options, DeviceName device) const;
  void allocate_outputs(tw_attention& a);

 private:
  std::vector<int64_t> out_shape_, lse_shape_;
};

}  // namespace tilewise::cli
