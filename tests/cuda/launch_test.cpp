// The launch path on a machine without a GPU: what a fake driver was asked to do, and what the user is told
// when it refuses.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "core/error.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/memory.h"
#include "cuda/launch/params.h"
#include "fake_cuda.h"
#include "fresh_process.h"
#include "kernels/wgmma/launch.h"
#include "support/case.h"
#include "support/gpu.h"
#include "tilewise/tilewise.h"
#include "views.h"

namespace tilewise::cuda {
namespace {

using test::Environment;
using test::in_fresh_process;
using test::says;

const Environment kFake = {{"TILEWISE_CUDA_DRIVER_PATH", FAKE_CUDA},
                           {"TILEWISE_NVRTC_PATH", FAKE_NVRTC},
                           {"TILEWISE_CACHE_DIR", "/dev/null"},
                           {"TILEWISE_PACK", ""},
                           {"TILEWISE_JIT", ""},
                           {"TILEWISE_ALGORITHM", ""},
                           {"FAKE_CUDA_DEVICES", "80 80"},
                           {"FAKE_CUDA_FAIL", ""}};

Environment with(const Environment& changes) {
  Environment all = kFake;
  for (const auto& [name, value] : changes) all[name] = value;
  return all;
}

template <class F>
F* exported(const char* name) {
  return reinterpret_cast<F*>(dlsym(dlopen(FAKE_CUDA, RTLD_NOW), name));
}

std::vector<fake_cuda::Launch>& launches() {
  return *exported<std::vector<fake_cuda::Launch>*()>("fake_cuda_launches")();
}

// A bf16 forward, B 2, Sq 100, Sk 130, H 4, Hk 2, D 64, on one device.
struct Forward {
  explicit Forward(int device) : ordinal(device) {
    tw_attention_init(&a, sizeof a);
    a.q = tensor(q, {2, 100, 4, 64}), a.k = tensor(k, {2, 130, 2, 64}), a.v = tensor(v, {2, 130, 2, 64});
    a.out = tensor(out, {2, 100, 4, 64});
    a.lse = tensor(lse, {2, 4, 100});
    a.lse.dtype = TW_FP32;
    a.lse.ndim = 3;
  }
  tw_tensor tensor(const DeviceBuffer& buffer, std::vector<int64_t> size) const {
    tw_tensor t{};
    t.data = buffer.data(), t.dtype = TW_BF16, t.ndim = int(size.size()), t.device_type = TW_CUDA,
    t.device_index = ordinal;
    int64_t stride = 1;
    for (int i = t.ndim - 1; i >= 0; --i)
      t.size[i] = size[size_t(i)], t.stride[i] = stride, stride *= size[size_t(i)];
    return t;
  }
  std::string run(void* stream = nullptr) const {
    const tw_status status = tw_attention_run(&a, TW_FORWARD, nullptr, 0, stream);
    return std::string(tw_status_name(status)) + " " + tw_last_error();
  }
  int ordinal;
  DeviceBuffer q{ordinal, 200 * 4 * 64 * 2}, k{ordinal, 260 * 2 * 64 * 2}, v{ordinal, 260 * 2 * 64 * 2},
      out{ordinal, 200 * 4 * 64 * 2}, lse{ordinal, 800 * 4};
  tw_attention a{};
};

TEST(Launch, ArgumentsReachTheKernel) {
  const std::string said = in_fresh_process(kFake, [] {
    exported<void(size_t)>("fake_cuda_argument_bytes")(sizeof(AttentionParams));
    Forward f(1);
    f.a.options.causal = 1;
    f.a.options.window_left = 17;
    int stream = 0;
    if (const std::string result = f.run(&stream); result != "TW_OK ") return result;
    if (launches().size() != 1) return cat(launches().size(), " launches");
    const fake_cuda::Launch& l = launches()[0];
    AttentionParams p{};
    std::memcpy(&p, l.argument.data(), sizeof p);
    const bool pointers = p.q == f.a.q.data && p.k == f.a.k.data && p.v == f.a.v.data &&
                          p.out == f.a.out.data && p.lse == f.a.lse.data;
    const bool sizes = p.B == 2 && p.Sq == 100 && p.Sk == 130 && p.H == 4 && p.Hk == 2 && p.group == 2 &&
                       p.D == 64 && p.Dv == 64;
    const bool strides = p.q_stride.b == 25600 && p.q_stride.s == 256 && p.q_stride.h == 64 &&
                         p.q_stride.d == 1 && p.lse_h == 100;
    const bool masks = p.window_left == 17 && p.window_right == 0 && p.top_left == 0 && p.scale == 0.125f;
    return cat(l.kernel, " device ", l.device, (l.stream == &stream ? " stream" : ""),
               (pointers ? " pointers" : ""), (sizes ? " sizes" : ""), (strides ? " strides" : ""),
               (masks ? " masks" : ""), l.shared_bytes > 0 && l.threads >= 128);
  });
  EXPECT_EQ(said, "tilewise::mma::forward<tilewise::kConfig> device 1 stream pointers sizes strides masks1");
}

TEST(Launch, UncoveredRowsAreClearedOnlyWhereThereAreLengths) {
  const std::string said = in_fresh_process(kFake, [] {
    Forward f(0);
    DeviceBuffer used(0, 8);
    f.a.seqused_q = f.tensor(used, {2});
    f.a.seqused_q.dtype = TW_INT32;
    const std::string result = f.run();
    std::string names = result;
    for (const fake_cuda::Launch& l : launches()) names += l.kernel + "; ";
    return names;
  });
  EXPECT_EQ(
      said,
      "TW_OK tilewise::mma::forward<tilewise::kConfig>; tilewise::common::uncovered<tilewise::kConfig>; ");
}

TEST(Launch, HopperTakesWgmmaAndSaysWhyNotWhenItCannot) {
  const auto run = [](const char* algorithm) {
    return in_fresh_process(with({{"FAKE_CUDA_DEVICES", "90"}}), [&] {
      Forward f(0);
      f.a.options.algorithm = algorithm;
      const std::string result = f.run();
      return result + (launches().empty() ? "" : launches()[0].kernel);
    });
  };
  EXPECT_EQ(run(nullptr), "TW_OK tilewise::wgmma::forward<tilewise::kConfig>");
  EXPECT_EQ(run("fa2"), "TW_OK tilewise::mma::forward<tilewise::kConfig>");
  EXPECT_TRUE(says(run("nonsense"),
                   "TW_INVALID_ARGUMENT algorithm: 'nonsense' is no CUDA algorithm; there are wgmma, fa2, "
                   "wide, fa1, unfused"));
  const std::string ampere = in_fresh_process(kFake, [] {
    Forward f(0);
    f.a.options.algorithm = "wgmma";
    return f.run();
  });
  EXPECT_TRUE(says(ampere,
                   "TW_UNSUPPORTED no CUDA kernel for this problem (wgmma: needs the wgmma instructions of "
                   "sm_90; this is sm_80"));
}

const std::pair<const char*, std::vector<tw_pass>> kPasses[] = {{"wgmma", {TW_FORWARD}},
                                                                {"fa2", {TW_FORWARD, TW_BACKWARD}},
                                                                {"fa1", {TW_FORWARD, TW_BACKWARD}},
                                                                {"unfused", {TW_FORWARD, TW_BACKWARD}}};
const Environment kHopper = with({{"FAKE_CUDA_DEVICES", "90"}});

TEST(Launch, C07_GridsHoldManySequencesBatchesAndHeads) {
  const std::string said = in_fresh_process(kHopper, [] {
    Views views(0);
    constexpr int64_t kMany = 70000;
    tw_attention packed = views.attention(1, kMany, 1, 16);
    for (tw_tensor* t : {&packed.q, &packed.k, &packed.v, &packed.out, &packed.dout, &packed.dq, &packed.dk,
                         &packed.dv, &packed.lse})
      for (int i = 0; i < t->ndim; ++i)
        if (i + 1 < t->ndim)
          t->size[i] = t->size[i + 1], t->stride[i] = t->stride[i + 1];
        else
          --t->ndim;
    packed.cu_seqlens_q = packed.cu_seqlens_k = views.tensor(TW_INT32, {kMany + 1});
    packed.max_seqlen_q = packed.max_seqlen_k = 1;
    std::string wrong;
    int ran = 0;
    for (tw_attention a : {views.attention(kMany, 1, 1, 16), views.attention(1, 1, kMany, 16), packed})
      for (const auto& [algorithm, passes] : kPasses)
        for (tw_pass pass : passes) {
          a.options.algorithm = algorithm;
          size_t bytes = 0;
          if (tw_attention_workspace(&a, pass, &bytes) == TW_UNSUPPORTED) continue;  // baselines, packed
          const DeviceBuffer workspace(0, bytes);
          if (tw_attention_run(&a, pass, workspace.data(), bytes, nullptr) != TW_OK) wrong += tw_last_error();
          ++ran;
        }
    return cat(ran, " runs. ", wrong);
  });
  EXPECT_EQ(said, "17 runs. ");
}

// A call of a prepared plan may be captured: it launches, and at most clears memory on the stream. The second
// call makes a graph; the third has it.
TEST(Launch, C35_APreparedCallAllocatesAndWaitsForNothing) {
  const std::string said = in_fresh_process(kHopper, [] {
    Views views(0);
    tw_attention a = views.attention(2, 100, 4, 64);
    std::string called;
    for (const auto& [algorithm, passes] : kPasses)
      for (tw_pass pass : passes) {
        a.options.algorithm = algorithm;
        tw_plan* plan = nullptr;
        if (tw_plan_create(&a, pass, &plan) != TW_OK || tw_plan_prepare(plan) != TW_OK)
          return std::string(tw_last_error());
        const DeviceBuffer workspace(0, tw_plan_workspace(plan));
        std::set<std::string> allowed = {"cuLaunchKernelEx",           "cuMemsetD8Async",
                                         "cuTensorMapEncodeTiled",     "cuStreamGetId",
                                         "cuStreamIsCapturing",        "cuTensorMapReplaceAddress",
                                         "cuStreamGetGreenCtx",        "cuGraphCreate",
                                         "cuGraphAddKernelNode_v2",    "cuGraphLaunch",
                                         "cuGraphInstantiateWithFlags"};
        auto& calls = *exported<std::set<std::string>*()>("fake_cuda_calls")();
        for (int n = 0; n < 3; ++n) {
          if (n == 2) allowed.erase("cuGraphCreate"), allowed.erase("cuGraphInstantiateWithFlags");
          calls.clear();
          if (tw_plan_execute(plan, &a, workspace.data(), workspace.bytes(), nullptr) != TW_OK)
            return std::string(tw_last_error());
          for (const std::string& call : calls)
            if (!allowed.count(call)) called += cat(algorithm, " calls ", call, "; ");
          if (!calls.count("cuLaunchKernelEx") && !calls.count("cuGraphLaunch"))
            called += "nothing launched; ";
        }
        tw_plan_destroy(plan);
      }
    return called;
  });
  EXPECT_EQ(said, "");
}

// Tensor maps are encoded once a plan and moved afterwards, or encoded anew where the driver cannot move
// them.
TEST(Launch, TensorMapsFollowTheMemory) {
  const auto run = [](const Environment& environment) {
    return in_fresh_process(environment, [] {
      exported<void(size_t)>("fake_cuda_argument_bytes")(sizeof(wgmma::ForwardLaunch));
      exported<void(size_t)>("fake_cuda_argument_index")(1);
      Views views(0);
      tw_attention a = views.attention(2, 100, 4, 64), b = views.attention(2, 100, 4, 64);
      a.options.algorithm = b.options.algorithm = "wgmma";
      tw_plan* plan = nullptr;
      if (tw_plan_create(&a, TW_FORWARD, &plan) != TW_OK) return std::string(tw_last_error());
      const DeviceBuffer workspace(0, tw_plan_workspace(plan));
      std::string said;
      auto& calls = *exported<std::set<std::string>*()>("fake_cuda_calls")();
      for (const tw_attention* x : {&a, &b, &a}) {
        calls.clear();
        if (tw_plan_execute(plan, x, workspace.data(), workspace.bytes(), nullptr) != TW_OK)
          return std::string(tw_last_error());
        wgmma::ForwardLaunch launch{};
        std::memcpy(&launch, launches().back().argument.data(), sizeof launch);
        const auto points_to = [](const TensorMap& map, const tw_tensor& t) {
          uint64_t address = 0;
          std::memcpy(&address, &map, sizeof address);
          return address == reinterpret_cast<uint64_t>(t.data);
        };
        said += points_to(launch.q, x->q) && points_to(launch.k, x->k) && points_to(launch.v, x->v) ? "right"
                                                                                                    : "wrong";
        said += calls.count("cuTensorMapEncodeTiled") ? " encoded; " : " moved; ";
      }
      tw_plan_destroy(plan);
      return said;
    });
  };
  EXPECT_EQ(run(kHopper), "right encoded; right moved; right moved; ");
  Environment refusing = kHopper;
  refusing["FAKE_CUDA_FAIL"] = "cuTensorMapReplaceAddress=1";
  EXPECT_EQ(run(refusing), "right encoded; right encoded; right encoded; ");
}

TEST(Launch, PointersLessAlignedThanPlannedAreRefused) {
  const std::string said = in_fresh_process(kFake, [] {
    Forward f(0);
    tw_attention shapes = f.a;
    shapes.q.data = shapes.k.data = shapes.v.data = shapes.out.data = shapes.lse.data = nullptr;
    tw_plan* plan = nullptr;
    if (tw_plan_create(&shapes, TW_FORWARD, &plan) != TW_OK) return std::string(tw_last_error());
    f.a.k.data = static_cast<char*>(f.a.k.data) + 8;
    const tw_status status = tw_plan_execute(plan, &f.a, nullptr, 0, nullptr);
    const std::string sentence = tw_last_error();
    tw_plan_destroy(plan);
    return cat(tw_status_name(status), " ", sentence, " launches: ", launches().size());
  });
  EXPECT_TRUE(says(said, "TW_INVALID_ARGUMENT k: address"));
  EXPECT_TRUE(says(said, "is not a multiple of 16 bytes, as the plan took for granted"));
  EXPECT_TRUE(says(said, "launches: 0"));
}

TEST(Launch, BackwardRunsInTheCallersWorkspace) {
  const std::string said = in_fresh_process(kFake, [] {
    exported<void(size_t)>("fake_cuda_argument_bytes")(sizeof(AttentionParams));
    Forward f(0);
    const DeviceBuffer dout(0, 200 * 4 * 64 * 2), dq(0, 200 * 4 * 64 * 2), dk(0, 260 * 2 * 64 * 2),
        dv(0, 260 * 2 * 64 * 2);
    f.a.dout = f.tensor(dout, {2, 100, 4, 64}), f.a.dq = f.tensor(dq, {2, 100, 4, 64});
    f.a.dk = f.tensor(dk, {2, 130, 2, 64}), f.a.dv = f.tensor(dv, {2, 130, 2, 64});
    size_t bytes = 0;
    tw_attention_workspace(&f.a, TW_BACKWARD, &bytes);
    const DeviceBuffer workspace(0, bytes);
    const tw_status status = tw_attention_run(&f.a, TW_BACKWARD, workspace.data(), bytes, nullptr);
    std::string names = std::string(tw_status_name(status)) + tw_last_error();
    bool inside = true;
    for (const fake_cuda::Launch& l : launches()) {
      names += " " + l.kernel.substr(10, l.kernel.find('<') - 10);
      AttentionParams p{};
      std::memcpy(&p, l.argument.data(), sizeof p);
      for (const float* part : {p.delta, p.lse_log2, p.dq_accum})
        inside = inside && reinterpret_cast<const std::byte*>(part) >= workspace.data() &&
                 reinterpret_cast<const std::byte*>(part) < workspace.data() + bytes;
    }
    return names + (inside ? ", inside" : ", outside");
  });
  EXPECT_EQ(said, "TW_OK common::bwd_prepare mma::backward common::bwd_convert, inside");
}

TEST(Launch, FailuresAreReported) {
  const auto failing = [](const char* what) {
    return in_fresh_process(with({{"FAKE_CUDA_FAIL", what}}), [] { return Forward(0).run(); });
  };
  EXPECT_TRUE(says(failing("cuLaunchKernelEx=719"), "TW_DEVICE_ERROR launch of the kernel mma forward bf16"));
  EXPECT_TRUE(says(failing("cuLaunchKernelEx=719"), "CUDA_ERROR_FAKE (719, as the test asked)"));
  EXPECT_TRUE(says(failing("cuModuleLoadData=209"),
                   "It supports CUDA 13.0; a kernel built by a newer NVRTC needs a newer driver"));
  EXPECT_TRUE(says(failing("cuModuleGetFunction=500"),
                   "TW_DEVICE_ERROR cuModuleGetFunction of the kernel mma forward"));
  EXPECT_TRUE(says(failing("cuFuncSetAttribute=1"), "bytes of shared memory: CUDA_ERROR_FAKE"));
  EXPECT_TRUE(says(failing("cuMemAlloc_v2=2"), "error: allocating"));
}

TEST(Launch, AFailedLaunchDoesNotPoisonThePlan) {
  const std::string said = in_fresh_process(kFake, [] {
    const Forward f(0);
    const auto fail = exported<void(const char*)>("fake_cuda_fail");
    fail("cuModuleLoadData=2");
    const std::string first = f.run();
    fail("");
    return first.substr(0, 16) + " then " + f.run();
  });
  EXPECT_EQ(said, "TW_OUT_OF_MEMORY then TW_OK ");
}

TEST(Launch, WrongMemoryIsRefusedByName) {
  const std::string other = in_fresh_process(kFake, [] {
    Forward f(0);
    const DeviceBuffer elsewhere(1, 1 << 20);
    f.a.k.data = elsewhere.data();
    return f.run();
  });
  EXPECT_TRUE(says(other, "TW_INVALID_ARGUMENT k: memory of CUDA device 1, while the call says device 0"));
  const std::string host = in_fresh_process(kFake, [] {
    Forward f(0);
    alignas(256) static char memory[1 << 18];
    f.a.v.data = memory;
    const std::string result = f.run();
    return cat(result, " launches: ", launches().size());
  });
  EXPECT_TRUE(says(
      host, "TW_INVALID_ARGUMENT v is said to be CUDA memory, but the driver does not know the pointer"));
  EXPECT_TRUE(says(host, "launches: 0"));
}

TEST(Launch, EachCallsMemoryIsLookedAt) {
  const std::string said = in_fresh_process(kFake, [] {
    Forward f(0);
    const Forward others(0);
    const DeviceBuffer elsewhere(1, 1 << 20);
    tw_plan* plan = nullptr;
    if (tw_plan_create(&f.a, TW_FORWARD, &plan) != TW_OK) return std::string(tw_last_error());
    std::string result;
    void* const ks[] = {f.a.k.data, others.a.k.data, elsewhere.data(), f.a.k.data, elsewhere.data()};
    for (void* k : ks) {
      f.a.k.data = k;
      const tw_status status = tw_plan_execute(plan, &f.a, nullptr, 0, nullptr);
      result += status == TW_OK ? "right, " : cat(std::string(tw_last_error()).substr(0, 26), ", ");
    }
    tw_plan_destroy(plan);
    return cat(result, launches().size(), " launches");
  });
  EXPECT_EQ(said, "right, right, k: memory of CUDA device 1, right, k: memory of CUDA device 1, 3 launches");
}

TEST(Launch, MissingOrUnfitDevices) {
  const auto plan = [] {
    tw_plan* p = nullptr;
    Forward f(0);
    f.a.q.device_index = f.a.k.device_index = f.a.v.device_index = f.a.out.device_index =
        f.a.lse.device_index = 7;
    const tw_status status = tw_plan_create(&f.a, TW_FORWARD, &p);
    return std::string(tw_status_name(status)) + " " + tw_last_error();
  };
  EXPECT_TRUE(says(in_fresh_process(kFake, plan),
                   "TW_UNSUPPORTED CUDA tensors: device 7 does not exist: this process sees 2"));
  const std::string old =
      in_fresh_process(with({{"FAKE_CUDA_DEVICES", "75"}}), [] { return Forward(0).run(); });
  EXPECT_TRUE(says(old, "compute capability 7.5; the kernels need 8.0 (Ampere) or newer"));
}

TEST(Launch, NoNvrtcSaysWhatToInstall) {
  const std::string said = in_fresh_process(with({{"TILEWISE_NVRTC_PATH", "/nonexistent/libnvrtc.so"}}),
                                            [] { return Forward(0).run(); });
  EXPECT_TRUE(says(said, "TW_COMPILER_ERROR no usable NVRTC"));
}

TEST(Launch, TheCallersContextComesBack) {
  for (const char* ids : {"", "1"}) {
    const std::string said = in_fresh_process(with({{"FAKE_CUDA_NO_IDS", ids}}), [] {
      const Forward f0(0), f1(1);
      const CurrentDevice outer(0);
      const uint64_t before = outer.context();
      std::string result = f1.run();
      result += f0.run();
      const CurrentDevice again(0);
      const bool kept = before == again.context();
      {
        const CurrentDevice inner(1);
        result += f1.run();
        result += f0.run();
        const CurrentDevice once_more(1);
        result += inner.context() == once_more.context() && before != inner.context() ? "same " : "other ";
      }
      std::string where;
      for (const fake_cuda::Launch& l : launches()) where += std::to_string(l.device);
      return cat(result, kept, CurrentDevice(0).context() == before, " on ", where);
    });
    EXPECT_EQ(said, "TW_OK TW_OK TW_OK TW_OK same 11 on 1010");
  }
}

TEST(Launch, OnePlanManyThreads) {
  const std::string said = in_fresh_process(kFake, [] {
    const Forward f(1);
    tw_plan* plan = nullptr;
    tw_plan_create(&f.a, TW_FORWARD, &plan);
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([&] {
        for (int n = 0; n < 50; ++n) good += tw_plan_execute(plan, &f.a, nullptr, 0, nullptr) == TW_OK;
      });
    for (std::thread& t : threads) t.join();
    tw_plan_destroy(plan);
    return cat(good.load(), " ", launches().size());
  });
  EXPECT_EQ(said, "400 400");
}

TEST(Launch, ExplainShowsTheKernel) {
  const std::string said = in_fresh_process(kFake, [] {
    const Forward f(0);
    tw_plan* plan = nullptr;
    tw_plan_create(&f.a, TW_FORWARD, &plan);
    std::string text[2];
    for (std::string& t : text) {
      t.resize(4096);
      size_t length = 0;
      tw_plan_explain(plan, t.data(), t.size(), &length);
      t.resize(length);
      tw_plan_prepare(plan);
    }
    tw_plan_destroy(plan);
    return text[0] + "\n----\n" + text[1];
  });
  EXPECT_TRUE(says(said, "algorithm  fa2"));
  EXPECT_TRUE(says(said, "sm_80, to be compiled at first use"));
  EXPECT_TRUE(says(said, "sm_80, loaded in this process, 42 registers, 0 bytes spilled"));
}

// Sizes of zero: some of a call's launches have nothing to do, or all.
TEST(Launch, C01_AnEmptyGridIsNoLaunch) {
  const std::string said = in_fresh_process(kHopper, [] {
    std::string wrong;
    std::map<std::string, int> ran;
    for (const char* sizes : {"B=0 Sq=3 Sk=4 H=2 Hk=2", "B=2 Sq=0 Sk=4 H=2 Hk=1", "B=2 Sq=3 Sk=0 H=2 Hk=1",
                              "B=2 Sq=0 Sk=0 H=2 Hk=1", "B=2 Sq=3 Sk=4 H=0 Hk=0", "B=0 Sq=0 Sk=0 H=0 Hk=0"})
      for (const char* flags :
           {"", "causal", "varlen", "used=qk", "sink dlse", "bias=11ij:fp32", "causal mask=bhij"})
        for (const char* dtype : {"fp32", "bf16"})
          for (const std::string& algorithm : test::gpu_algorithms()) {
            const std::string line = cat(dtype, " bwd ", sizes, " D=64 Dv=64 ", flags);
            test::Attention x(test::parse_case(line));
            for (tw_pass pass : {TW_FORWARD, TW_BACKWARD}) {
              const tw_status status = x.run(pass, algorithm);
              ran[algorithm] += status == TW_OK;
              if (status != TW_OK && status != TW_UNSUPPORTED)
                wrong += cat(line, " on ", algorithm, ": ", tw_last_error(), "; ");
            }
          }
    for (const auto& [algorithm, runs] : ran) wrong += cat(algorithm, runs > 10 ? "" : " hardly", " ran. ");
    return wrong;
  });
  EXPECT_EQ(said, "fa1 ran. fa2 ran. unfused ran. wgmma ran. wide ran. ");
}

TEST(Launch, NothingToDoLaunchesNothing) {
  const std::string said = in_fresh_process(kFake, [] {
    Forward f(0);
    f.a.q.size[0] = f.a.k.size[0] = f.a.v.size[0] = f.a.out.size[0] = f.a.lse.size[0] = 0;
    return f.run() + std::to_string(launches().size());
  });
  EXPECT_EQ(said, "TW_OK 0");
}

}  // namespace
}  // namespace tilewise::cuda
