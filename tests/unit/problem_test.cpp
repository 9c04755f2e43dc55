// Every refusal of the C interface: status, and a sentence that names the argument, its value and what works.
// Nothing is written.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/problem.h"
#include "support/case.h"

namespace tilewise::test {
namespace {

struct Mistake {
  const char* name;
  const char* line;
  void (*make)(Attention&);
  std::vector<const char*> words;  // that the message must have
};

constexpr char kForward[] = "fp32 fwd B=2 Sq=5 Sk=7 H=4 Hk=2 D=8 Dv=6";
constexpr char kBackward[] = "fp32 bwd B=2 Sq=5 Sk=7 H=4 Hk=2 D=8 Dv=6 bias=11ij:bf16 sink dlse";
constexpr char kPacked[] = "fp32 fwd B=2 Sq=5 Sk=7 H=4 Hk=2 D=8 Dv=6 varlen";
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void PrintTo(const Mistake& m, std::ostream* s) { *s << m.name; }

const Mistake kMistakes[] = {
    {"MissingQ", kForward, [](Attention& x) { x.a.q = {}; }, {"q", "missing", "forward"}},
    {"MissingV", kForward, [](Attention& x) { x.a.v = {}; }, {"v", "missing"}},
    {"MissingOut", kForward, [](Attention& x) { x.a.out = {}; }, {"out", "missing"}},
    {"NullData", kForward, [](Attention& x) { x.a.k.data = nullptr; }, {"k", "NULL", "(2, 7, 2, 8)"}},
    {"UnknownDtype", kForward, [](Attention& x) { x.a.q.dtype = 99; }, {"q", "99", "TW_FP32"}},
    {"IntegerDtype", kForward, [](Attention& x) { x.a.q.dtype = TW_INT32; }, {"q", "int32", "fp32"}},
    {"MixedDtypes", kForward, [](Attention& x) { x.a.k.dtype = TW_FP16; }, {"k", "fp16", "fp32"}},
    {"OutDtype", kForward, [](Attention& x) { x.a.out.dtype = TW_BF16; }, {"out", "bf16", "fp32"}},
    {"Rank", kForward, [](Attention& x) { x.a.q.ndim = 3; }, {"q", "3", "(B, S, H, D)"}},
    {"RankOutOfRange", kForward, [](Attention& x) { x.a.q.ndim = 7; }, {"q", "7", "1 to 4"}},
    {"NegativeSize", kForward, [](Attention& x) { x.a.q.size[1] = -3; }, {"q", "-3"}},
    {"HugeSize", kForward, [](Attention& x) { x.a.q.size[1] = INT64_MAX; }, {"q", "2^60"}},
    {"HugeStride",
     kForward,
     [](Attention& x) { x.a.q.stride[1] = INT64_MAX / 2; },
     {"q", "stride[1]", "2^60"}},
    {"MinStride", kForward, [](Attention& x) { x.a.v.stride[0] = INT64_MIN; }, {"v", "stride[0]"}},
    {"KeysOfVDiffer", kForward, [](Attention& x) { x.a.v.size[1] = 6; }, {"v", "6", "7"}},
    {"HeadsDoNotDivide", kForward, [](Attention& x) { x.a.k.size[2] = x.a.v.size[2] = 3; }, {"k", "3", "4"}},
    {"HeadsOfVDiffer", kForward, [](Attention& x) { x.a.v.size[2] = 1; }, {"v", "1", "2"}},
    {"HeadDimOfK", kForward, [](Attention& x) { x.a.k.size[3] = 7; }, {"k", "7", "8"}},
    {"ZeroHeadDim",
     kForward,
     [](Attention& x) { x.a.q.size[3] = x.a.k.size[3] = 0; },
     {"q", "0", "at least 1"}},
    {"BatchOfK", kForward, [](Attention& x) { x.a.k.size[0] = 1; }, {"k", "1", "2"}},
    {"ShapeOfOut",
     kForward,
     [](Attention& x) { x.a.out.size[3] = 5; },
     {"out", "(2, 5, 4, 5)", "(2, 5, 4, 6)"}},
    {"ShapeOfLse", kForward, [](Attention& x) { x.a.lse.size[2] = 4; }, {"lse", "(2, 4, 4)", "(2, 4, 5)"}},
    {"DtypeOfLse",
     "fp16 fwd B=2 Sq=5 Sk=7 H=4 Hk=2 D=8 Dv=6",
     [](Attention& x) { x.a.lse.dtype = TW_FP16; },
     {"lse", "fp16", "fp32"}},
    {"ExpandedOut",
     kForward,
     [](Attention& x) { x.a.out.stride[2] = 0; },
     {"out", "stride[2]", "share memory"}},
    {"OutIsQ", kForward, [](Attention& x) { x.a.out.data = x.a.q.data; }, {"out", "q", "of its own"}},
    {"Misaligned",
     kForward,
     [](Attention& x) { x.a.q.data = static_cast<char*>(x.a.q.data) + 1; },
     {"q", "multiple", "4"}},
    {"DeviceType", kForward, [](Attention& x) { x.a.q.device_type = 13; }, {"q", "13", "TW_CPU"}},
    {"MixedDevices",
     kForward,
     [](Attention& x) { x.a.k.device_type = TW_CUDA; },
     {"k", "CUDA", "one device"}},
    {"BiasShape",
     "fp32 fwd B=2 Sq=5 Sk=7 H=4 Hk=2 D=8 Dv=6 bias=bhij:fp32",
     [](Attention& x) { x.a.bias.size[3] = 3; },
     {"bias", "(2, 4, 5, 3)", "7"}},
    {"BiasBool",
     "fp32 fwd B=2 Sq=5 Sk=7 H=4 Hk=2 D=8 Dv=6 bias=11ij:fp32",
     [](Attention& x) { x.a.bias.dtype = TW_BOOL; },
     {"bias", "bool", "mask"}},
    {"MaskFloat",
     "fp32 fwd B=2 Sq=5 Sk=7 H=4 Hk=2 D=8 Dv=6 mask=11ij",
     [](Attention& x) { x.a.mask.dtype = TW_FP32; },
     {"mask", "fp32", "bool", "bias"}},
    {"AlibiShape",
     "fp32 fwd B=2 Sq=5 Sk=7 H=4 Hk=2 D=8 Dv=6 alibi=h",
     [](Attention& x) { x.a.alibi_slopes.size[0] = 3; },
     {"alibi_slopes", "(3)", "4"}},
    {"SinkShape",
     "fp32 fwd B=2 Sq=5 Sk=7 H=4 Hk=2 D=8 Dv=6 sink",
     [](Attention& x) { x.a.sink.size[0] = 2; },
     {"sink", "(2)", "4"}},
    {"Window", kForward, [](Attention& x) { x.a.options.window_left = -3; }, {"window_left", "-3", "-1"}},
    {"WindowRight",
     kForward,
     [](Attention& x) { x.a.options.window_right = INT64_MIN; },
     {"window_right", "-1"}},
    {"Alignment",
     kForward,
     [](Attention& x) { x.a.options.alignment = 2; },
     {"alignment", "2", "TW_TOP_LEFT"}},
    {"Scale", kForward, [](Attention& x) { x.a.options.scale = 1e300; }, {"scale", "1e+300", "finite"}},
    {"NegativeSoftcap", kForward, [](Attention& x) { x.a.options.softcap = -1; }, {"softcap", "-1"}},
    {"NanSoftcap", kForward, [](Attention& x) { x.a.options.softcap = kNan; }, {"softcap", "nan"}},
    {"Dropout1", kForward, [](Attention& x) { x.a.options.dropout_p = 1; }, {"dropout_p", "1", "[0, 1)"}},
    {"DropoutNegative", kForward, [](Attention& x) { x.a.options.dropout_p = -1; }, {"dropout_p", "-1"}},
    {"DropoutNan", kForward, [](Attention& x) { x.a.options.dropout_p = kNan; }, {"dropout_p", "nan"}},
    {"Threads", kForward, [](Attention& x) { x.a.options.threads = -2; }, {"threads", "-2"}},
    {"Algorithm",
     kForward,
     [](Attention& x) { x.a.options.algorithm = "warp9"; },
     {"algorithm", "warp9", "scalar"}},
    {"OnlyOneCuSeqlens",
     kPacked,
     [](Attention& x) { x.a.cu_seqlens_k = {}; },
     {"cu_seqlens_k", "missing", "both"}},
    {"CuSeqlensDtype",
     kPacked,
     [](Attention& x) { x.a.cu_seqlens_q.dtype = TW_FP32; },
     {"cu_seqlens_q", "fp32", "int32"}},
    {"CuSeqlensShape",
     kPacked,
     [](Attention& x) { x.a.cu_seqlens_k.size[0] = 2; },
     {"cu_seqlens_k", "(2)", "3"}},
    {"CuSeqlensFirst", kPacked, [](Attention& x) { x.cu_q.set(1, 0); }, {"cu_seqlens_q[0]", "1", "0"}},
    {"CuSeqlensDecrease", kPacked, [](Attention& x) { x.cu_k.set(1000, 1); }, {"cu_seqlens_k[2]", "1000"}},
    {"CuSeqlensBeyond",
     kPacked,
     [](Attention& x) { x.cu_k.set(1000, 2); },
     {"cu_seqlens_k[2]", "1000", "rows"}},
    {"MaxSeqlen", kPacked, [](Attention& x) { x.a.max_seqlen_q = 2; }, {"max_seqlen_q", "2", "5"}},
    {"MaxSeqlenNegative", kPacked, [](Attention& x) { x.a.max_seqlen_k = -1; }, {"max_seqlen_k", "-1"}},
    {"Seqused",
     "fp32 fwd B=2 Sq=5 Sk=7 H=4 Hk=2 D=8 Dv=6 used=k",
     [](Attention& x) { x.used_k.set(8, 1); },
     {"seqused_k[1]", "8", "7"}},
    {"SequsedNegative",
     "fp32 fwd B=2 Sq=5 Sk=7 H=4 Hk=2 D=8 Dv=6 used=q",
     [](Attention& x) { x.used_q.set(-1, 0); },
     {"seqused_q[0]", "-1"}},
    {"MissingLse", kBackward, [](Attention& x) { x.a.lse = {}; }, {"lse", "missing", "backward"}},
    {"MissingDout", kBackward, [](Attention& x) { x.a.dout = {}; }, {"dout", "missing"}},
    {"MissingDq", kBackward, [](Attention& x) { x.a.dq = {}; }, {"dq", "missing"}},
    {"ShapeOfDk",
     kBackward,
     [](Attention& x) { x.a.dk.size[2] = 1; },
     {"dk", "(2, 7, 1, 8)", "(2, 7, 2, 8)"}},
    {"DqIsQ", kBackward, [](Attention& x) { x.a.dq.data = x.a.q.data; }, {"dq", "shares memory with q"}},
    {"DkIsDout", kBackward, [](Attention& x) { x.a.dk.data = x.a.dout.data; }, {"d", "shares memory"}},
    {"ExpandedDv", kBackward, [](Attention& x) { x.a.dv.stride[1] = 0; }, {"dv", "stride[1]"}},
    {"DbiasWithoutBias", kBackward, [](Attention& x) { x.a.bias = {}; }, {"dbias", "bias"}},
    {"DbiasShape", kBackward, [](Attention& x) { x.a.dbias.size[2] = 1; }, {"dbias", "(1, 1, 1, 7)"}},
    {"DbiasDtype", kBackward, [](Attention& x) { x.a.dbias.dtype = TW_FP16; }, {"dbias", "fp16", "bf16"}},
    {"DsinkWithoutSink", kBackward, [](Attention& x) { x.a.sink = {}; }, {"dsink", "sink"}},
    {"DlseShape", kBackward, [](Attention& x) { x.a.dlse.size[1] = 2; }, {"dlse", "(2, 2, 5)"}},
};

class Refusal : public testing::TestWithParam<Mistake> {};

TEST_P(Refusal, SaysWhatWouldWork) {
  const Mistake& m = GetParam();
  Attention x(parse_case(m.line));
  m.make(x);
  const char* algorithm = x.a.options.algorithm ? x.a.options.algorithm : "";
  const tw_status status = x.run(x.c.backward ? TW_BACKWARD : TW_FORWARD, algorithm);
  const std::string message = tw_last_error();
  ASSERT_EQ(status, TW_INVALID_ARGUMENT) << message;
  for (const char* word : m.words)
    EXPECT_NE(message.find(word), message.npos) << "no '" << word << "' in: " << message;
  EXPECT_EQ(x.damage, "");
}

INSTANTIATE_TEST_SUITE_P(Problem, Refusal, testing::ValuesIn(kMistakes),
                         [](const auto& mistake) { return std::string(mistake.param.name); });

TEST(ProblemMessages, UnknownPass) {
  Attention x(parse_case(kForward));
  size_t bytes = 0;
  EXPECT_EQ(tw_attention_workspace(&x.a, tw_pass(7), &bytes), TW_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tw_last_error()).find("7"), std::string::npos);
}

// A plan's next call: memory and random numbers may be others, and only they.
TEST(RepeatedCall, TakesOverMemoryAlone) {
  for (const char* line : {kForward, kBackward, kPacked}) {
    const Case c = parse_case(line);
    const tw_pass pass = c.backward ? TW_BACKWARD : TW_FORWARD;
    Attention x(c), y(c);
    y.a.options.seed = 5, y.a.options.offset = 6;
    y.a.options.algorithm = "scalar";
    const Problem planned = make_problem(x.a, pass);
    const std::optional<Problem> p = repeated(planned, x.a, y.a);
    ASSERT_TRUE(p) << line;
    const Problem in_full = make_problem(y.a, pass);
    check_same(in_full, *p);
    const auto memory = [](const Problem& m) {
      return std::tuple(m.q.data, m.k.data, m.v.data, m.out.data, m.lse.data, m.bias.data, m.sink,
                        m.cu_seqlens_q.data, m.cu_seqlens_k.data, m.dout.data, m.dlse.data, m.dq.data,
                        m.dk.data, m.dv.data, m.dsink, m.seed, m.offset, std::string(m.algorithm));
    };
    EXPECT_TRUE(memory(*p) == memory(in_full)) << line;
  }
}

TEST(RepeatedCall, AnythingElseIsCheckedInFull) {
  Attention x(parse_case(kForward));
  const Problem planned = make_problem(x.a, TW_FORWARD);
  for (void (*change)(tw_attention&) :
       {+[](tw_attention& a) { a.q.stride[1] += 8; }, +[](tw_attention& a) { a.options.causal = 1; },
        +[](tw_attention& a) { a.lse = {}; }, +[](tw_attention& a) { a.options.scale = 2; },
        +[](tw_attention& a) { a.k.device_type = TW_CUDA; }}) {
    tw_attention changed = x.a;
    change(changed);
    EXPECT_FALSE(repeated(planned, x.a, changed));
  }
}

TEST(RepeatedCall, MemoryIsChecked) {
  Attention x(parse_case(kForward));
  const Problem planned = make_problem(x.a, TW_FORWARD);
  const auto refusal = [&](const tw_attention& a) {
    try {
      repeated(planned, x.a, a);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  tw_attention a = x.a;
  a.out.data = a.q.data;
  EXPECT_NE(refusal(a).find("out: shares memory with q"), std::string::npos) << refusal(a);
  a = x.a;
  a.v.data = static_cast<char*>(a.v.data) + 2;
  EXPECT_NE(refusal(a).find("v: address"), std::string::npos) << refusal(a);
}

// The forward writes down what it drew; a backward that would draw something else is refused before it
// writes.
TEST(ProblemMessages, DropoutOfAnotherForward) {
  Attention x(parse_case("fp32 bwd B=1 Sq=8 Sk=8 H=1 Hk=1 D=8 Dv=8 dropout=0.25 seed=7"));
  int64_t drawn[3] = {};
  x.a.rng_state.data = drawn;
  x.a.rng_state.dtype = TW_INT64;
  x.a.rng_state.ndim = 1;
  x.a.rng_state.size[0] = 3;
  x.a.rng_state.stride[0] = 1;
  ASSERT_EQ(x.run(TW_FORWARD, ""), TW_OK) << tw_last_error();
  EXPECT_EQ(drawn[0], 7);
  EXPECT_EQ(drawn[1], 21);
  ASSERT_EQ(x.run(TW_BACKWARD, ""), TW_OK) << tw_last_error();
  x.a.options.seed = 8;
  ASSERT_EQ(x.run(TW_BACKWARD, ""), TW_INVALID_ARGUMENT);
  const std::string message = tw_last_error();
  for (const char* word : {"rng_state", "seed 7", "seed 8", "offset 21", "0.25"})
    EXPECT_NE(message.find(word), message.npos) << "no '" << word << "' in: " << message;
  EXPECT_EQ(x.damage, "");
  x.a.options.seed = 7;
  x.a.options.dropout_p = 0.5;
  EXPECT_EQ(x.run(TW_BACKWARD, ""), TW_INVALID_ARGUMENT);
}

TEST(ProblemMessages, NullsAreRefused) {
  tw_plan* plan = nullptr;
  EXPECT_EQ(tw_plan_create(nullptr, TW_FORWARD, &plan), TW_INVALID_ARGUMENT);
  Attention x(parse_case(kForward));
  EXPECT_EQ(tw_plan_create(&x.a, TW_FORWARD, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_plan_prepare(nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_plan_execute(nullptr, &x.a, nullptr, 0, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_plan_explain(nullptr, nullptr, 0, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_attention_workspace(&x.a, TW_FORWARD, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_merge(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_plan_workspace(nullptr), 0u);
  tw_plan_destroy(nullptr);
}

}  // namespace
}  // namespace tilewise::test
