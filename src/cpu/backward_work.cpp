#include <algorithm>
#include <bit>

#include "cpu/backward_work.h"

namespace tilewise::cpu {
namespace {

constexpr i64 kMinRows = 256;  // of queries of a part: below that, its accumulators cost more than it brings
constexpr size_t kSplitBytes = size_t{72} << 20;  // of accumulators, over all split units

// Keys that each query block of a sequence visits, plus a constant for the block itself.
std::vector<i64> block_costs(const Problem& p, const Sequence& s, i64 block_q) {
  const Band<i64> band = p.band(s.sq, s.sk);
  std::vector<i64> costs;
  for (i64 i = 0; i < s.sq; i += block_q)
    costs.push_back(band.any(i, std::min(i + block_q, s.sq)).size() + block_q);
  return costs;
}

i64 sum(const std::vector<i64>& x) {
  i64 total = 0;
  for (i64 v : x) total += v;
  return total;
}

// Cuts the items of one unit into `parts` runs of about equal cost.
void cut_unit(BackwardWork& work, const BackwardPart& whole, const std::vector<i64>& costs, i64 group,
              i64 parts, size_t copy) {
  const i64 blocks = i64(costs.size()), total = sum(costs) * group;
  BackwardPart part = whole;
  i64 item = 0, done = 0;
  for (i64 n = 1; n <= parts; ++n) {
    part.begin = item;
    part.cost = 0;
    while (item < blocks * group && (n == parts || done + part.cost < total / parts * n))
      part.cost += costs[size_t(item++ % blocks)];
    done += part.cost;
    part.end = item;
    part.number = i64(work.parts.size());
    part.split_offset = whole.split_offset + size_t(n - 1) * copy;
    work.parts.push_back(part);
  }
}

// The steps of a part and the keys that they see. Steps get smaller towards the part's end, where threads
// that have run out of parts share what is left.
void cut_part(BackwardWork& work, const Problem& p, BackwardGrain grain, BackwardPart& part) {
  const Sequence& s = part.sequence;
  const Band<i64> band = p.band(s.sq, s.sk);
  const i64 blocks = ceil_div(s.sq, grain.block_q);
  part.first_step = i64(work.steps.size());
  i64 begin = s.sk, end = 0;
  for (i64 left = part.end; left > part.begin;) {
    const i64 last = (left - 1) % blocks, most = std::min(last + 1, left - part.begin),
              n = std::min(std::clamp<i64>((left - part.begin) / 2, 1, grain.most_blocks), most);
    const i64 first = last + 1 - n;
    work.steps.push_back({part.number, (left - 1) / blocks, first, n});
    const auto seen = band.any(first * grain.block_q, std::min((last + 1) * grain.block_q, s.sq));
    if (!seen.empty()) begin = std::min(begin, seen.begin), end = std::max(end, seen.end);
    left -= n;
  }
  part.steps = i64(work.steps.size()) - part.first_step;
  part.key_begin = begin / kStoreRows * kStoreRows;
  part.key_end = std::max(part.key_begin, std::min(padded(end, kStoreRows), s.sk));
}

// Parts of a unit that has `share` of kBackwardTasks, `rows` rows of queries and memory for `room` parts. A
// power of two, because equal parts go evenly to two, four or eight threads.
i64 parts_of(i64 share, i64 rows, i64 room) {
  return i64(std::bit_floor(u64(std::max<i64>(std::min({share, rows / kMinRows, room}), 1))));
}

}  // namespace

size_t accumulator_bytes(const Problem& p, BackwardGrain grain, i64 sk) {
  return size_t(sk) * size_t(padded(p.D, grain.width) + padded(p.Dv, grain.width)) * sizeof(float);
}

size_t split_budget(const Problem& p, BackwardGrain grain) {
  const size_t copy = accumulator_bytes(p, grain, p.Sk);
  const i64 units = p.B * p.Hk;
  if (!copy || !units) return 0;
  if (p.varlen()) return 2 * copy <= kSplitBytes ? std::min(kSplitBytes, copy * size_t(kBackwardTasks)) : 0;
  const i64 parts =
      parts_of(ceil_div(kBackwardTasks, units), p.Sq * p.group(), i64(kSplitBytes / copy) / units);
  return parts < 2 ? 0 : size_t(parts * units) * copy;
}

BackwardWork cut_backward(const Problem& p, const std::vector<Sequence>& sequences, BackwardGrain grain,
                          size_t split_bytes) {
  std::vector<std::vector<i64>> costs;
  i64 total = 0;
  for (const Sequence& s : sequences) {
    costs.push_back(block_costs(p, s, grain.block_q));
    total += sum(costs.back()) * p.H;
  }
  BackwardWork work;
  size_t used = 0;  // of split_bytes
  for (size_t n = 0; n < sequences.size(); ++n) {
    const Sequence& s = sequences[n];
    if ((!s.sq && !s.sk) || !p.Hk) continue;
    const size_t copy = accumulator_bytes(p, grain, s.sk);
    const i64 cost = sum(costs[n]) * p.group(), share = total ? ceil_div(cost * kBackwardTasks, total) : 0,
              sharers = p.Hk * (p.varlen() ? 1 : i64(sequences.size() - n)),
              room = copy ? i64((split_bytes - used) / copy) / sharers : 0;
    const i64 parts = parts_of(share, s.sq * p.group(), room);
    for (i64 hk = 0; hk < p.Hk; ++hk) {
      BackwardPart whole;
      whole.unit = i64(work.units.size());
      whole.sequence = s;
      whole.kv_head = hk;
      whole.split_offset = used;
      work.units.push_back({i64(work.parts.size()), parts});
      cut_unit(work, whole, costs[n], p.group(), parts, copy);
      if (parts > 1) used += size_t(parts) * copy;
    }
  }
  for (BackwardPart& part : work.parts) cut_part(work, p, grain, part);
  for (const BackwardPart& part : work.parts)
    if (part.steps) work.order.push_back(part.number);
  std::stable_sort(work.order.begin(), work.order.end(),
                   [&](i64 a, i64 b) { return work.parts[size_t(a)].cost > work.parts[size_t(b)].cost; });
  return work;
}

std::vector<BiasRegion> cut_dbias(const Problem& p, i64 block_q, i64 block_k) {
  const i64* n = p.dbias.size;
  auto blocks = [](i64 size, i64 whole, i64 block) {
    std::vector<std::pair<i64, i64>> ranges;
    if (size == 1) return ranges = {{0, whole}};
    for (i64 x = 0; x < size; x += block) ranges.push_back({x, std::min(x + block, size)});
    return ranges;
  };
  std::vector<BiasRegion> regions;
  for (i64 b = 0; b < n[0]; ++b)
    for (i64 h = 0; h < n[1]; ++h)
      for (auto [i0, i1] : blocks(n[2], p.Sq, block_q))
        for (auto [j0, j1] : blocks(n[3], p.Sk, block_k)) regions.push_back({b, h, i0, i1, j0, j1});
  return regions;
}

}  // namespace tilewise::cpu
