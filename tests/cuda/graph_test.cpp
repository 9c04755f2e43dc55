// Plans as graphs, on a machine without a GPU: when there is one, what its kernels are
// given, and that launches one by one take its place wherever the driver refuses.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "core/error.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/graph.h"
#include "cuda/driver/memory.h"
#include "fake_cuda.h"
#include "fresh_process.h"
#include "kernels/shared/params.h"
#include "tilewise/tilewise.h"
#include "views.h"

namespace tilewise::cuda {
namespace {

using test::Environment;
using test::in_fresh_process;
using test::says;

Environment with(const Environment& changes) {
  Environment all = {{"TILEWISE_CUDA_DRIVER_PATH", FAKE_CUDA},
                     {"TILEWISE_NVRTC_PATH", FAKE_NVRTC},
                     {"TILEWISE_CACHE_DIR", "/dev/null"},
                     {"TILEWISE_PACK", ""},
                     {"TILEWISE_JIT", ""},
                     {"TILEWISE_ALGORITHM", ""},
                     {"FAKE_CUDA_DEVICES", "80 80"},
                     {"FAKE_CUDA_FAIL", ""}};
  for (const auto& [name, value] : changes) all[name] = value;
  return all;
}
const Environment kFake = with({});

template <class F>
F* exported(const char* name) {
  return reinterpret_cast<F*>(dlsym(dlopen(getenv("TILEWISE_CUDA_DRIVER_PATH"), RTLD_NOW), name));
}
std::vector<fake_cuda::Launch>& launches() {
  return *exported<std::vector<fake_cuda::Launch>*()>("fake_cuda_launches")();
}
fake_cuda::Graphs& graphs() { return *exported<fake_cuda::Graphs*()>("fake_cuda_graphs")(); }
void fail(const char* what) { exported<void(const char*)>("fake_cuda_fail")(what); }
void capture(void* stream) { exported<void(void*)>("fake_cuda_capture")(stream); }

void* stream(uintptr_t n) { return reinterpret_cast<void*>(0x1000 * n); }

AttentionParams parameters(const fake_cuda::Launch& l) {
  AttentionParams p{};
  std::memcpy(&p, l.argument.data(), sizeof p);
  return p;
}

// Tensors of a bf16 backward, B 2, S 100, H 4, D 64, and a workspace.
struct Tensors : Views {
  explicit Tensors(int device = 0)
      : Views(device), a(attention(2, 100, 4, 64)), space(device, size_t{1} << 22) {
    exported<void(size_t)>("fake_cuda_argument_bytes")(sizeof(AttentionParams));
  }
  const DeviceBuffer& workspace() const { return space; }

  tw_attention a;
  DeviceBuffer space;
};

// A plan, and what became of its calls: "plain" or "graph" for each, with the number of kernels.
struct Plan {
  explicit Plan(const Tensors& t, tw_pass pass = TW_BACKWARD) {
    if (tw_plan_create(&t.a, pass, &plan) != TW_OK) throw std::runtime_error(tw_last_error());
  }
  ~Plan() { tw_plan_destroy(plan); }
  Plan(const Plan&) = delete;

  std::string run(const Tensors& t, void* on) const {
    const size_t before = launches().size();
    const DeviceBuffer& w = t.workspace();
    if (const tw_status s = tw_plan_execute(plan, &t.a, w.data(), w.bytes(), on); s != TW_OK)
      return cat(tw_status_name(s), " ", tw_last_error(), "; ");
    std::set<const void*> ways;
    for (size_t i = before; i < launches().size(); ++i) {
      const fake_cuda::Launch& l = launches()[i];
      const AttentionParams p = parameters(l);
      ways.insert(l.graph);
      if (l.stream != on) return "another stream; ";
      if (p.q != t.a.q.data || (p.dk && p.dk != t.a.dk.data)) return "other tensors; ";
      const auto* part = reinterpret_cast<const std::byte*>(p.delta);
      if (p.delta && (part < w.data() || part >= w.data() + w.bytes())) return "another workspace; ";
    }
    if (ways.size() != 1) return "not one way; ";
    last_graph = *ways.begin();
    return cat(last_graph ? "graph " : "plain ", launches().size() - before, "; ");
  }
  tw_plan* plan = nullptr;
  mutable const void* last_graph = nullptr;
};

TEST(Graph, FromTheSecondCallOnTheKernelsAreOneGraph) {
  const std::string said = in_fresh_process(kFake, [] {
    const Tensors t;
    const Plan plan(t);
    std::string result;
    for (int i = 0; i < 3; ++i) result += plan.run(t, stream(1));
    const auto& all = launches();
    for (size_t i = 3; i < all.size(); ++i) {
      const fake_cuda::Launch &plain = all[i % 3], &l = all[i];
      const bool same = l.kernel == plain.kernel && std::equal(l.grid, l.grid + 3, plain.grid) &&
                        l.threads == plain.threads && l.shared_bytes == plain.shared_bytes &&
                        l.device == plain.device && l.argument == plain.argument;
      if (!same) result += cat("launch ", i, " is another; ");
    }
    return cat(result, graphs().made, " made, ", graphs().parameters_set, " set");
  });
  EXPECT_EQ(said, "plain 3; graph 3; graph 3; 1 made, 0 set");
}

TEST(Graph, EachCallsTensorsAndWorkspace) {
  const std::string said = in_fresh_process(kFake, [] {
    const Tensors first, second;
    const Plan plan(first);
    std::string result;
    for (const Tensors* t : {&first, &first, &second, &second, &first}) result += plan.run(*t, nullptr);
    return cat(result, graphs().made, " made, ", graphs().parameters_set, " set");
  });
  EXPECT_EQ(said, "plain 3; graph 3; graph 3; graph 3; graph 3; 1 made, 6 set");
}

// dbias' address is read by its own kernel alone, and before the kernels memory is cleared.
TEST(Graph, OnlyWhatDiffersIsSet) {
  const std::string said = in_fresh_process(kFake, [] {
    Tensors t;
    exported<void(size_t)>("fake_cuda_argument_bytes")(0);
    t.a.bias = t.tensor(TW_BF16, {2, 4, 100, 100});
    t.a.dbias = t.tensor(TW_BF16, {2, 4, 100, 100});
    const tw_tensor other = t.tensor(TW_BF16, {2, 4, 100, 100});
    const Plan plan(t);
    auto& calls = *exported<std::set<std::string>*()>("fake_cuda_calls")();
    std::string result;
    for (int call = 0; call < 4; ++call) {
      if (call == 3) t.a.dbias = other;
      calls.clear();
      const size_t before = launches().size();
      const DeviceBuffer& w = t.workspace();
      if (tw_plan_execute(plan.plan, &t.a, w.data(), w.bytes(), nullptr) != TW_OK)
        return std::string(tw_last_error());
      result += cat(calls.count("cuMemsetD8Async") ? "cleared " : "",
                    launches().size() - before > 3 ? "many" : "few",
                    launches().back().graph ? " graph " : " plain ", graphs().parameters_set, "; ");
    }
    return result;
  });
  EXPECT_EQ(said, "cleared many plain 0; cleared many graph 0; cleared many graph 0; cleared many graph 1; ");
}

// Without keys, the main kernel has nothing to do.
TEST(Graph, EmptyGridsAreNoNodes) {
  const std::string said = in_fresh_process(kFake, [] {
    Tensors t;
    for (tw_tensor* x : {&t.a.k, &t.a.v, &t.a.dk, &t.a.dv}) x->size[1] = 0, x->data = nullptr;
    const Plan plan(t);
    std::string result;
    for (int i = 0; i < 3; ++i) result += plan.run(t, nullptr);
    return result;
  });
  EXPECT_EQ(said, "plain 2; graph 2; graph 2; ");
}

TEST(Graph, OneKernelIsOneToo) {
  const std::string said = in_fresh_process(kFake, [] {
    Tensors t;
    const Plan plan(t, TW_FORWARD);
    std::string result;
    for (int i = 0; i < 4; ++i) result += plan.run(t, nullptr);
    auto& calls = *exported<std::set<std::string>*()>("fake_cuda_calls")();
    return cat(result, graphs().graphs, calls.count("cuStreamGetId"), calls.count("cuStreamIsCapturing"));
  });
  EXPECT_EQ(said, "plain 1; graph 1; graph 1; graph 1; 111");
}

TEST(Graph, EachStreamHasItsOwn) {
  const std::string said = in_fresh_process(kFake, [] {
    const Tensors t;
    const Plan plan(t);
    std::string result;
    std::map<const void*, int> executables;
    for (int round = 0; round < 3; ++round)
      for (void* s : {stream(1), stream(2), static_cast<void*>(nullptr)})
        result += plan.run(t, s), ++executables[plan.last_graph];
    for (int n = 0; n < 2; ++n)
      std::thread([&] {
        for (int i = 0; i < 3; ++i)
          result += plan.run(t, fake_cuda::kPerThread), ++executables[plan.last_graph];
      }).join();
    result += "times:";
    executables.erase(nullptr);
    for (const auto& [graph, times] : executables) result += cat(" ", times);
    return result;
  });
  EXPECT_EQ(said,
            "plain 3; plain 3; plain 3; graph 3; graph 3; graph 3; graph 3; graph 3; graph 3; plain 3; graph "
            "3; graph 3; "
            "plain 3; graph 3; graph 3; times: 2 2 2 2 2");
}

TEST(Graph, WhereThereIsNoneKernelsAreLaunched) {
  const auto runs = [](void* on) {
    const Tensors t;
    const Plan plan(t);
    std::string result;
    for (int i = 0; i < 3; ++i) result += plan.run(t, on);
    capture(on);
    result += "captured: " + plan.run(t, on);
    capture(nullptr);
    return result + plan.run(t, on);
  };
  const std::string plain = "plain 3; plain 3; plain 3; captured: plain 3; plain 3; ";
  EXPECT_EQ(in_fresh_process(kFake, [&] { return runs(stream(1)); }),
            "plain 3; graph 3; graph 3; captured: plain 3; graph 3; ");
  EXPECT_EQ(in_fresh_process(kFake, [&] { return runs(fake_cuda::kGreen); }), plain);
  EXPECT_EQ(in_fresh_process(with({{"TILEWISE_CUDA_DRIVER_PATH", FAKE_CUDA_WITHOUT_GRAPHS}}),
                             [&] { return runs(stream(1)); }),
            plain);
  for (const char* what :
       {"cuStreamGetId=1", "cuStreamIsCapturing=906", "cuStreamGetGreenCtx=400", "cuGraphCreate=2",
        "cuGraphAddKernelNode_v2=1", "cuGraphInstantiateWithFlags=2", "cuGraphLaunch=801"})
    EXPECT_EQ(in_fresh_process(with({{"FAKE_CUDA_FAIL", what}}), [&] { return runs(stream(1)); }), plain)
        << what;
}

// What was refused once is not tried again; what was half made leaves nothing behind.
TEST(Graph, ARefusalIsForGood) {
  for (const char* what : {"cuGraphCreate=2", "cuGraphAddKernelNode_v2=1", "cuGraphInstantiateWithFlags=2",
                           "cuGraphLaunch=801", "cuGraphExecKernelNodeSetParams_v2=1"}) {
    const std::string said = in_fresh_process(kFake, [&] {
      const Tensors first, second;
      std::string result;
      {
        const Plan plan(first);
        plan.run(first, stream(1));
        if (strstr(what, "SetParams")) plan.run(first, stream(1));
        fail(what);
        result += plan.run(second, stream(1));
        fail("");
        result += plan.run(second, stream(1)) + plan.run(first, stream(2)) + plan.run(first, stream(2));
      }
      return cat(result, graphs().graphs, graphs().executables, " left");
    });
    EXPECT_EQ(said, "plain 3; plain 3; plain 3; plain 3; 00 left") << what;
  }
}

// A graph that has refused once could hold an earlier call's parameters.
TEST(Graph, RefusesForGoodAndOtherNumbersOfKernels) {
  const std::string said = in_fresh_process(kFake, [] {
    const CurrentDevice current(0);
    std::string name = "kernel";  // the fake driver's function
    const Function f{&name};
    int argument = 0;
    void* arguments[] = {&argument};
    constexpr size_t kBytes[] = {sizeof argument};
    KernelGraph fixed(0, current.context()), refusing(0, current.context());
    std::string result;
    const auto call = [&](KernelGraph& graph, int kernels) {
      graph.begin();
      for (int i = 0; i < kernels; ++i) graph.add(f, {}, arguments, kBytes);
      result += graph.launch(nullptr) ? "launched " : "refused ";
    };
    call(fixed, 2), call(fixed, 1), call(fixed, 2);
    call(refusing, 2), call(refusing, 2);
    ++argument;
    fail("cuGraphExecKernelNodeSetParams_v2=1");
    call(refusing, 2);
    fail("");
    call(refusing, 2);
    return cat(result, launches().size());
  });
  EXPECT_EQ(said, "launched refused refused launched launched refused refused 6");
}

TEST(Graph, ARefusedLaunchNamesItsKernel) {
  const std::string said = in_fresh_process(kFake, [&] {
    const Tensors t;
    const Plan plan(t);
    plan.run(t, nullptr), plan.run(t, nullptr);
    fail("cuGraphLaunch=719 cuLaunchKernelEx=719");
    return plan.run(t, nullptr);
  });
  EXPECT_TRUE(says(said, "TW_DEVICE_ERROR launch of the kernel mma backward_prepare bf16"));
  EXPECT_TRUE(says(said, "CUDA_ERROR_FAKE (719, as the test asked)"));
}

// A call that ends before its launch: the next one is right.
TEST(Graph, ACallThatIsRefusedLeavesThePlanWell) {
  const std::string said = in_fresh_process(kFake, [&] {
    const Tensors t;
    Tensors shapes, wrong;
    for (tw_tensor* x : {&shapes.a.q, &shapes.a.k, &shapes.a.v, &shapes.a.out, &shapes.a.dout, &shapes.a.dq,
                         &shapes.a.dk, &shapes.a.dv, &shapes.a.lse})
      x->data = nullptr;
    wrong.a.k.data = static_cast<char*>(wrong.a.k.data) + 8;
    const Plan plan(shapes);
    std::string result = plan.run(t, nullptr);
    for (int i = 0; i < 2; ++i) {
      result += plan.run(wrong, nullptr).substr(0, 27) + "; ";
      result += plan.run(t, nullptr);
    }
    return cat(result, graphs().graphs);
  });
  EXPECT_EQ(said, "plain 3; TW_INVALID_ARGUMENT k: addr; graph 3; TW_INVALID_ARGUMENT k: addr; graph 3; 1");
}

TEST(Graph, ManyStreamsKeepTheLastFew) {
  const std::string said = in_fresh_process(kFake, [] {
    const Tensors t;
    std::string result;
    {
      const Plan plan(t);
      for (uintptr_t s = 1; s <= 20; ++s)
        for (int i = 0; i < 3; ++i)
          if (plan.run(t, stream(s)) != (i ? "graph 3; " : "plain 3; "))
            result += cat("stream ", s, " call ", i);
      result += cat(graphs().made, " made, ", graphs().executables, " ", graphs().graphs, " kept; ");
      for (uintptr_t s : {20, 13, 12}) result += plan.run(t, stream(s));  // 12 has been pushed out
      // In turn, too many to be kept: no graph is made for a single call.
      for (int round = 0; round < 3; ++round)
        for (uintptr_t s = 30; s < 39; ++s)
          if (plan.run(t, stream(s)) != "plain 3; ") result += "a graph for one call; ";
    }
    return cat(result, graphs().made, " made, ", graphs().executables, graphs().graphs, " left");
  });
  EXPECT_EQ(said, "20 made, 8 8 kept; graph 3; graph 3; plain 3; 20 made, 00 left");
}

TEST(Graph, GoesWithThePlanWhereItsContextIs) {
  for (const bool alive : {true, false}) {
    const std::string said = in_fresh_process(kFake, [&] {
      const Tensors here(0), there(1);
      {
        const Plan one(here), two(there);
        for (int i = 0; i < 2; ++i) one.run(here, nullptr), two.run(there, nullptr);
        exported<void(int)>("fake_cuda_primary_active")(alive);
      }
      return cat(graphs().executables, graphs().graphs);
    });
    EXPECT_EQ(said, alive ? "00" : "22");  // a context takes its graphs along: they are not touched
  }
}

// Two threads on each of four streams, each with its own tensors; the fake driver aborts when two threads are
// in one graph.
TEST(Graph, ManyThreads) {
  const std::string said = in_fresh_process(kFake, [] {
    constexpr int kThreads = 8, kCalls = 100;
    std::vector<Tensors> tensors(kThreads);
    int right = 0;
    {
      const Plan plan(tensors[0]);
      std::vector<std::thread> threads;
      std::vector<int> good(kThreads);
      for (size_t i = 0; i < kThreads; ++i)
        threads.emplace_back([&, i] {
          const Tensors& t = tensors[i];
          for (int n = 0; n < kCalls; ++n)
            good[i] += tw_plan_execute(plan.plan, &t.a, t.workspace().data(), t.workspace().bytes(),
                                       stream(i / 2 + 1)) == TW_OK;
        });
      for (std::thread& t : threads) t.join();
      for (int n : good) right += n;
    }
    std::map<const void*, int> calls;  // by tensors
    const auto& all = launches();
    size_t torn = 0, as_graphs = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      ++calls[parameters(all[i]).q];
      if (!all[i].graph) continue;
      if (as_graphs++ % 3 && (all[i].argument != all[i - 1].argument || all[i].graph != all[i - 1].graph))
        ++torn;
    }
    for (const Tensors& t : tensors) torn += calls[t.a.q.data] != 3 * kCalls;
    return cat(right, " right, ", torn, " torn, ", all.size() - as_graphs, " plain, ", graphs().made,
               " made, ", graphs().executables, " left");
  });
  EXPECT_EQ(said, "800 right, 0 torn, 12 plain, 4 made, 0 left");
}

}  // namespace
}  // namespace tilewise::cuda
