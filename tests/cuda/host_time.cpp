// How long a planned call keeps the calling thread busy: B 2, S 256, H 8, D 128, bf16, causal. Beside it the
// driver's own part: the launch of a kernel that takes as many bytes of arguments and does nothing. Each
// round is 50 calls on an idle stream, so that nothing waits for the GPU; the median of 41 rounds.
//   host_time            on the GPU      host_time LIMIT     fails when a repeated call takes more
//   than LIMIT microseconds
// Calls go as graphs, the backward's three kernels as one. With other tensors at each call the driver is
// asked whose they are, and sets each kernel's parameters anew: shown, and held to no limit. With the fake
// driver of the tests (TILEWISE_CUDA_DRIVER_PATH) it shows the library's part alone.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/error.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/memory.h"
#include "cuda/jit/kernels.h"
#include "kernels/common/product_rate.h"
#include "kernels/shared/params.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cuda {
namespace {

template <class F>
double microseconds(F&& call) {
  constexpr int kCalls = 50;
  std::vector<double> rounds;
  for (int round = 0; round < 41; ++round) {
    synchronize(0, nullptr);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    rounds.push_back(took.count() / kCalls);
  }
  synchronize(0, nullptr);
  std::nth_element(rounds.begin(), rounds.begin() + 20, rounds.end());
  return rounds[20];
}

// The driver's launch alone: the smallest kernel that there is, made to add up nothing.
double launch_alone() {
  const CurrentDevice current(0);
  const Config c = common::rate_config(80, Element::bf16);
  const Function f = load_kernel(c, device(0), current.context(), 0);
  const DeviceBuffer sums(0, size_t(common::rate_threads(c)) * 4);
  const common::RateParams p{reinterpret_cast<float*>(sums.data()), 0};
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&p))};
  const LaunchShape shape{.threads = unsigned(common::rate_threads(c))};
  return microseconds([&] { launch(f, shape, arguments, nullptr, "nothing"); });
}

struct Call {
  Call(const char* algorithm, tw_pass pass_) : pass(pass_) {
    tw_attention& x = a;
    const std::vector<int64_t> shape = {2, 256, 8, 128};
    for (tw_tensor* t : {&x.q, &x.k, &x.v, &x.out}) *t = tensor(shape, TW_BF16);
    x.lse = tensor({2, 8, 256}, TW_FP32);
    if (pass == TW_BACKWARD)
      for (tw_tensor* t : {&x.dout, &x.dq, &x.dk, &x.dv}) *t = tensor(shape, TW_BF16);
    x.options.causal = 1;
    x.options.algorithm = algorithm;
  }
  tw_tensor tensor(const std::vector<int64_t>& size, tw_dtype dtype) {
    tw_tensor t{};
    t.dtype = dtype, t.ndim = int(size.size()), t.device_type = TW_CUDA;
    int64_t elements = 1;
    for (int i = t.ndim - 1; i >= 0; --i)
      t.size[i] = size[size_t(i)], t.stride[i] = elements, elements *= size[size_t(i)];
    buffers.emplace_back(0, size_t(elements) * 4);
    const std::vector<std::byte> zeros(size_t(elements) * 4);
    buffers.back().upload(zeros.data(), zeros.size());
    t.data = buffers.back().data();
    return t;
  }
  tw_pass pass;
  tw::Attention a;
  std::vector<DeviceBuffer> buffers;
};

// Calls of one plan that take the tensors of `calls` in turn.
double time(const std::vector<Call>& calls) {
  const tw::Plan plan(calls[0].a, calls[0].pass);
  plan.prepare();
  std::vector<DeviceBuffer> workspaces;
  for (size_t i = 0; i < calls.size(); ++i) workspaces.emplace_back(0, plan.workspace());
  size_t turn = 0;
  return microseconds([&] {
    plan.execute(calls[turn].a, workspaces[turn].data(), workspaces[turn].bytes());
    turn = (turn + 1) % calls.size();
  });
}

int run(double limit) {
  std::printf("%s; a launch of nothing takes the driver %.2f us\n", device(0).name.c_str(), launch_alone());
  bool fast = true;
  for (const auto& [algorithm, pass] :
       {std::pair{"fa2", TW_FORWARD}, std::pair{"wgmma", TW_FORWARD}, std::pair{"fa2", TW_BACKWARD}})
    try {
      std::vector<Call> calls;
      calls.emplace_back(algorithm, pass);
      const double repeated = time(calls);
      calls.emplace_back(algorithm, pass);
      std::printf("%-6s %s  %.2f us a planned call, %.2f with other tensors each time\n", algorithm,
                  pass == TW_FORWARD ? "forward " : "backward", repeated, time(calls));
      fast = fast && repeated <= limit;
    } catch (const tw::Error& e) {
      if (e.status() != TW_UNSUPPORTED) throw;
      std::printf("%-6s %s  not here: %s\n", algorithm, pass == TW_FORWARD ? "forward " : "backward",
                  e.what());
    }
  if (!fast) std::printf("a repeated call takes more than %.1f us\n", limit);
  return fast ? 0 : 1;
}

}  // namespace
}  // namespace tilewise::cuda

int main(int argc, char** argv) {
  if (tilewise::cuda::devices().empty()) {
    std::printf("needs a GPU: %s\n", tilewise::cuda::driver_state().why_not.c_str());
    return 77;
  }
  return tilewise::cuda::run(argc > 1 ? std::atof(argv[1]) : 1e9);
}
