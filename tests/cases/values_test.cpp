// NaN and infinities that are there, and those that are not; scores far from zero; softcap at its ends.
#include <cmath>

#include "cases/cases.h"

namespace tilewise::test {
namespace {

class Values : public Cases {};

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

TEST_F(Values, C15_NanInAQueryIsItsRowsAlone) {
  expect("fp32 fwd B=2 Sq=16 Sk=16 H=4 Hk=4 D=8 Dv=8", [](Attention& x) { x.q.fill_elements(kNan); });
  for (const char* flags : {"", "causal", "softcap=3", "bias=11ij:fp32", "mask=11ij", "sink"})
    for (const char* dtype : {"fp32", "bf16"})
      expect(cat(dtype, " fwd B=1 Sq=40 Sk=90 H=2 Hk=1 D=16 Dv=16 ", flags),
             [](Attention& x) { x.q.set(kNan, 0, 38, 1, 3); });
}

TEST_F(Values, C15_NanInAVisibleKeyIsTheRowsThatSeeIt) {
  for (const char* flags : {"", "causal", "causal topleft", "window=10,3", "softcap=3", "sink"})
    for (const char* dtype : {"fp32", "fp16", "bf16"})
      for (i64 j : {0, 30, 89})
        expect(cat(dtype, " fwd B=1 Sq=90 Sk=90 H=2 Hk=2 D=16 Dv=16 ", flags),
               [&](Attention& x) { x.k.set(kNan, 0, j, 1, 5); });
}

TEST_F(Values, C15_NanInAVisibleValueIsItsColumn) {
  for (const char* flags : {"", "softcap=3", "bias=11ij:fp32", "sink"})
    for (const char* dtype : {"fp32", "fp16", "bf16"})
      for (double bad : {kNan, kInf})
        expect(cat(dtype, " fwd B=1 Sq=40 Sk=90 H=2 Hk=2 D=16 Dv=16 ", flags),
               [&](Attention& x) { x.v.set(bad, 0, 70, 1, 5); });
}

// A value that some queries of a tile see and others do not: only the former show it.
TEST_F(Values, C15_NanInAPartlyVisibleValue) {
  for (const char* flags : {"causal", "causal topleft", "window=10,3", "mask=11ij"})
    for (const char* dtype : {"fp32", "fp16", "bf16"})
      for (i64 j : {0, 30, 89})
        expect(cat(dtype, " fwd B=1 Sq=90 Sk=90 H=2 Hk=2 D=16 Dv=16 ", flags),
               [&](Attention& x) { x.v.set(kNan, 0, j, 1, 5); });
}

// No dP of such a row is finite: its dS is NaN for every key that it sees, whatever the signs in v.
TEST_F(Values, C15_NotFiniteDoutIsTheRowsKeys) {
  const auto expect_all = [&](const char* dtype, const char* flags) {
    for (double bad : {kNan, kInf, -kInf})
      expect(cat(dtype, " bwd B=1 Sq=40 Sk=90 H=2 Hk=1 D=16 Dv=16 ", flags),
             [&](Attention& x) { x.dout.set(bad, 0, 30, 1, 5); });
  };
  for (const char* flags : {"causal", "window=10,3", "mask=11ij", "", "softcap=3", "sink"})
    for (const char* dtype : {"fp32", "fp16", "bf16"}) expect_all(dtype, flags);
}

TEST_F(Values, C16_NanBeyondTheCachesLength) {
  const std::vector<Length> little = {{1, 3, 1, 1}, {1, 3, 1, 3}};
  const std::vector<Length> more = {{1, 128, 1, 32}, {1, 128, 1, 64}, {1, 128, 1, 96}, {1, 128, 1, 48}};
  for (int poison : {0, 1, 2}) {  // seed % 3 chooses NaN, +inf, -inf
    expect(cat("fp16 fwd B=2 Sq=1 Sk=3 H=1 Hk=1 D=64 Dv=64 used=k seed=", poison), little,
           [](Attention& x) { x.q.fill_elements(0.5); });
    for (int d : {64, 40})
      for (const char* dtype : {"bf16", "fp32"})
        expect(cat(dtype, " fwd B=4 Sq=1 Sk=128 H=8 Hk=2 D=", d, " Dv=", d, " used=k seed=", poison), more,
               no_change);
  }
}

TEST_F(Values, C18_AllScoresFarBelowZero) {
  for (const char* shift : {"-1e4", "-6e4", "-1e5", "-2.45e5", "1e4"})
    for (const char* dtype : {"fp32", "bf16"})
      for (const std::string& line :
           both_passes(cat(dtype, " PASS B=1 Sq=9 Sk=200 H=4 Hk=1 D=128 Dv=128 shift=", shift)))
        expect(line);
  for (double shift : {-1e4, -6e4, -1e5, -1e30, 1e30})
    for (const std::string& line : both_passes("fp32 PASS B=1 Sq=3 Sk=150 H=2 Hk=1 D=32 Dv=32 bias=j:fp32"))
      expect(line, [&](Attention& x) { x.bias.fill_elements(shift); });
}

TEST_F(Values, C18_HugeNegativeBiasOnSomeKeysIsNotAMask) {
  for (double low : {-1e30, double(std::numeric_limits<float>::lowest())})
    for (const char* dtype : {"bf16", "fp16", "fp32"})
      for (const std::string& line :
           both_passes(cat(dtype, " PASS B=1 Sq=70 Sk=200 H=1 Hk=1 D=32 Dv=32 bias=ij:fp32")))
        expect(line, [&](Attention& x) {
          for (i64 i = 0; i < 70; ++i)
            for (i64 j = 0; j < 200; ++j)
              x.bias.set(i % 2 || j < 100 ? low : 0, i, j);  // odd rows: everywhere, so it cancels
        });
}

TEST_F(Values, C20_BackwardWithLseFarFromZeroAndAPartialTile) {
  for (int shift : {0, -90, -128, -10000, 90})
    for (i64 n = 1; n <= 260; n += n < 20 ? 3 : 29)
      expect(cat("bf16 bwd B=1 Sq=", n, " Sk=", n,
                 " H=1 Hk=1 D=64 Dv=64 mask=11ij amplitude=0.1 shift=", shift, " seed=", n),
             [&](Attention& x) {
               for (i64 i = 0; i < n; ++i)
                 for (i64 j = 0; j < n; ++j) x.mask.set(j <= i, 0, 0, i, j);
               x.fill();
             });
  for (const char* dtype : {"bf16", "fp32"})
    expect(cat(dtype, " bwd B=1 Sq=1 Sk=128 H=2 Hk=2 D=64 Dv=64 shift=-128"));
}

TEST_F(Values, C39_SoftcapOfLargeScores) {
  for (double score : {1000., 3000., 5000., 10000., -10000., 4400.})
    for (const std::string& line :
         both_passes("fp32 PASS B=1 Sq=4 Sk=20 H=1 Hk=1 D=1 Dv=4 scale=1 softcap=50 causal bias=ij:fp32"))
      expect(line, [&](Attention& x) {
        x.q.fill_elements(1);
        x.k.fill_elements(score);
        x.k.set(0.5 * score, 0, 3, 0, 0);
      });
  for (const std::string& line :
       both_passes("bf16 PASS B=1 Sq=300 Sk=300 H=2 Hk=1 D=128 Dv=128 causal softcap=10 amplitude=4"))
    expect(line);
}

}  // namespace
}  // namespace tilewise::test
