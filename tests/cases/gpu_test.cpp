// What only a GPU can get wrong: streams, captured graphs, devices that are not current; and numbers of
// blocks beyond what one grid dimension holds, which the CPU's algorithms count as well.
#include <memory>
#include <thread>

#include "cases/cases.h"
#include "cuda/backend.h"
#include "cuda/driver/driver.h"
#include "oracle/accuracy.h"

namespace tilewise::test {
namespace {

class Many : public Cases {};

TEST_F(Many, C07_ManySequencesBatchesAndHeads) {
  constexpr i64 kMany = 70000;  // a grid's second dimension ends at 65535
  for (const char* pass : {"fwd", "bwd"}) {
    const std::string size = cat("Sq=1 Sk=1 D=16 Dv=16 B=", kMany, " H=1 Hk=1");
    expect(cat("fp16 ", pass, " ", size, " varlen"), std::vector<Length>(kMany, {1, 1, 1, 1}), no_change);
    expect(cat("fp16 ", pass, " Sq=1 Sk=1 D=16 Dv=16 B=1 H=", kMany, " Hk=", kMany));
  }
  expect(cat("fp16 fwd Sq=1 Sk=1 D=16 Dv=16 B=", kMany, " H=1 Hk=1"));
}

// A problem on a device, planned for an algorithm.
class Planned {
 public:
  Planned(const std::string& line, const std::string& algorithm, const std::vector<Length>& lengths,
          int device = 0)
      : algorithm_(algorithm), x(parse_case(line), lengths), call(x.a), there(call, start(x), device) {
    call.options.algorithm = algorithm_.c_str();
    make(TW_FORWARD, forward_, device);
    if (forward_.plan && x.c.backward) make(TW_BACKWARD, backward_, device);
  }
  Planned(const std::string& line, const std::string& algorithm, int device = 0)
      : Planned(line, algorithm, lengths(parse_case(line)), device) {}
  Planned(const Planned&) = delete;

  bool runs() const { return forward_.plan != nullptr; }
  std::string why_not;

  // The outputs as NaN, before the tensors travel.
  static std::vector<Tensor*> start(Attention& y) {
    std::vector<Tensor*> present;
    for (auto& t : y.tensors()) {
      if (!*t.tensor) continue;
      if (t.forward_output || t.backward_output) t.tensor->fill_elements(std::nan(""));
      t.tensor->remember();
      present.push_back(t.tensor);
    }
    return present;
  }

  void enqueue(void* stream) { enqueue(stream, *this); }
  // This one's plans with another's tensors and workspaces.
  void enqueue(void* stream, const Planned& memory) const {
    for (const auto pass : {&Planned::forward_, &Planned::backward_}) {
      const Pass &mine = this->*pass, &its = memory.*pass;
      if (!mine.plan) continue;
      const tw_status status =
          tw_plan_execute(mine.plan.get(), &memory.call, its.workspace.data(), its.workspace.bytes(), stream);
      EXPECT_EQ(status, TW_OK) << tw_last_error();
    }
  }
  // The outputs as NaN again.
  void restart() { there.upload(start(x)); }

  // What came back into `y`, whose inputs were on the device.
  void judge(Attention& y) const {
    std::vector<Tensor*> present;
    for (auto& t : y.tensors())
      if (*t.tensor) present.push_back(t.tensor);
    there.download(present);
    for (auto& t : y.tensors())
      if (*t.tensor) {
        EXPECT_EQ(t.tensor->damage(t.name, t.forward_output || t.backward_output), "");
      }
    const Problem f = make_problem(y.a, TW_FORWARD);
    EXPECT_EQ(oracle::messages(oracle::judge_forward(f, oracle::all_rows(f)), true), "") << algorithm_;
    if (!backward_.plan) return;
    EXPECT_EQ(oracle::messages(oracle::judge_backward(make_problem(y.a, TW_BACKWARD)), true), "")
        << algorithm_;
  }

 private:
  struct Destroy {
    void operator()(tw_plan* p) const { tw_plan_destroy(p); }
  };
  struct Pass {
    std::unique_ptr<tw_plan, Destroy> plan;
    cuda::DeviceBuffer workspace;
  };
  void make(tw_pass pass, Pass& p, int device) {
    tw_plan* plan = nullptr;
    const tw_status status = tw_plan_create(&call, pass, &plan);
    p.plan.reset(plan);
    if (status == TW_UNSUPPORTED) {
      why_not = tw_last_error();
      return;
    }
    EXPECT_EQ(status, TW_OK) << tw_last_error();
    EXPECT_EQ(tw_plan_prepare(plan), TW_OK) << tw_last_error();
    p.workspace = cuda::DeviceBuffer(device, tw_plan_workspace(plan));
  }

  std::string algorithm_;
  Pass forward_, backward_;

 public:
  Attention x;
  tw_attention call;
  OnGpu there;
};

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_algorithms().empty()) GTEST_SKIP() << "needs a GPU: " << cuda::machine(0).unavailable;
  }
};

const char kPlain[] = "bf16 bwd B=2 Sq=70 Sk=90 H=4 Hk=2 D=64 Dv=64 causal";

// Captured with three keys, replayed with more and none; other random numbers each time.
TEST_F(Gpu, C35_GraphCaptureAndReplay) {
  const auto of_length = [](i64 keys) { return std::vector<Length>(2, {40, 200, 40, keys}); };
  const std::string line = "bf16 bwd B=2 Sq=40 Sk=200 H=4 Hk=2 D=64 Dv=64 used=k dropout=0.25";
  int ran = 0;
  for (const std::string& algorithm : gpu_algorithms()) {
    Planned p(line, algorithm, of_length(3));
    if (!p.runs()) continue;
    ++ran;
    const cuda::DeviceBuffer state(0, 2 * sizeof(uint64_t));
    p.call.options.philox_state = reinterpret_cast<const uint64_t*>(state.data());
    Stream stream;
    stream.capture([&] { p.enqueue(stream.handle()); });
    uint64_t random[2] = {5, 0};
    for (const i64 keys : {3, 100, 200, 0, 77}) {
      ++random[1];
      state.upload(random, sizeof random);
      Attention y(parse_case(line), of_length(keys));
      y.a.options.philox_state = random;
      p.there.upload(Planned::start(y));
      stream.replay();
      stream.wait();
      SCOPED_TRACE(cat(keys, " keys"));
      p.judge(y);
    }
  }
  EXPECT_GT(ran, 0);
}

// The baselines know no used lengths: other values then.
TEST_F(Gpu, C35_ReplayWithOtherValues) {
  for (const std::string& algorithm : gpu_algorithms()) {
    Planned p(kPlain, algorithm);
    ASSERT_TRUE(p.runs()) << p.why_not;
    Stream stream;
    stream.capture([&] { p.enqueue(stream.handle()); });
    for (const char* seed : {" seed=2", " seed=3"}) {
      Attention y(parse_case(kPlain + std::string(seed)));
      p.there.upload(Planned::start(y));
      stream.replay();
      stream.wait();
      p.judge(y);
    }
  }
}

// From a plan's second call on a stream on, several kernels go as a graph: other tensors, other values, the
// default streams; and a capture of such a call.
TEST_F(Gpu, C35_LaterCallsAndTheirCapture) {
  for (const std::string& algorithm : gpu_algorithms()) {
    Planned p(kPlain, algorithm), other(kPlain + std::string(" seed=2"), algorithm);
    ASSERT_TRUE(p.runs()) << p.why_not;
    Stream stream;
    void* const per_thread = reinterpret_cast<void*>(2);
    for (void* s : {stream.handle(), static_cast<void*>(nullptr), per_thread})
      for (Planned* memory : {&p, &p, &other, &other, &p}) {
        memory->restart();
        p.enqueue(s, *memory);
        cuda::synchronize(0, s);
        memory->judge(memory->x);
      }
    stream.capture([&] { p.enqueue(stream.handle(), other); });
    for (const char* seed : {" seed=3", " seed=4"}) {
      Attention y(parse_case(kPlain + std::string(seed)));
      other.there.upload(Planned::start(y));
      p.restart();
      stream.replay();
      p.enqueue(stream.handle());  // beside the capture, which keeps its own
      stream.wait();
      other.judge(y);
      p.judge(p.x);
    }
  }
}

// One plan on two streams at once, and with other tensors behind calls that have yet to begin.
TEST_F(Gpu, C38_OnePlanOnTwoStreams) {
  for (const std::string& algorithm : gpu_algorithms()) {
    Planned a(kPlain, algorithm), b(kPlain + std::string(" seed=2"), algorithm),
        c(kPlain + std::string(" seed=3"), algorithm), d(kPlain + std::string(" seed=4"), algorithm);
    ASSERT_TRUE(a.runs()) << a.why_not;
    Stream one, two;
    for (int round = 0; round < 4; ++round) {
      for (Planned* memory : {&a, &b, &c, &d}) memory->restart();
      one.hold(30), two.hold(30);
      std::thread other([&] { a.enqueue(two.handle(), c), a.enqueue(two.handle(), d); });
      a.enqueue(one.handle(), a), a.enqueue(one.handle(), b);
      other.join();
      one.wait(), two.wait();
      for (Planned* memory : {&a, &b, &c, &d}) memory->judge(memory->x);
    }
  }
}

// No context at all is current on the calling thread.
TEST_F(Gpu, C37_ThreadWithoutAContext) {
  for (const std::string& algorithm : gpu_algorithms())
    std::thread([&] {
      EXPECT_EQ(current_context(), nullptr);
      Planned p(kPlain, algorithm);
      p.enqueue(nullptr);
      EXPECT_EQ(current_context(), nullptr);
      cuda::synchronize(0, nullptr);
      p.judge(p.x);
    }).join();
}

TEST_F(Gpu, C37_DeviceThatIsNotCurrent) {
  if (cuda::devices().size() < 2) GTEST_SKIP() << "needs two GPUs";
  for (const std::string& algorithm : gpu_algorithms()) {
    const cuda::CurrentDevice outer(0);
    void* const before = current_context();
    Planned p(kPlain, algorithm, 1);
    if (!p.runs()) continue;
    p.enqueue(nullptr);
    EXPECT_EQ(current_context(), before);
    cuda::synchronize(1, nullptr);
    p.judge(p.x);
    p.call.q.device_index = 0;
    size_t bytes = 0;
    EXPECT_EQ(tw_attention_workspace(&p.call, TW_FORWARD, &bytes), TW_INVALID_ARGUMENT);
  }
}

// The inputs arrive late on the caller's stream: whoever launches elsewhere reads NaN.
TEST_F(Gpu, C38_NonDefaultStream) {
  for (const std::string& algorithm : gpu_algorithms()) {
    const auto run = [&](const char* seed) {
      Planned p(kPlain + std::string(seed), algorithm);
      ASSERT_TRUE(p.runs()) << p.why_not;
      tw_attention unused = p.x.a;
      const OnGpu staged(unused, Planned::start(p.x));
      p.there.poison();
      Stream stream;
      stream.hold(100);
      p.there.copy(staged, stream.handle());
      p.enqueue(stream.handle());
      stream.wait();
      p.judge(p.x);
    };
    std::thread other(run, " seed=2");
    run(" seed=3");
    other.join();
  }
}

}  // namespace
}  // namespace tilewise::test
