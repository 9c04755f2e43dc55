#include "machine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

namespace tilewise::emulator {
namespace {

Machine* current_machine = nullptr;
Thread* current_thread = nullptr;

struct Region {
  const std::byte* end;
  std::string name;
  bool writable;
};
std::map<const std::byte*, Region>& regions() {
  static std::map<const std::byte*, Region> all;
  return all;
}

}  // namespace

Machine& Machine::now() { return *current_machine; }
Thread& Machine::thread() { return *current_thread; }

void Machine::fail(const std::string& message) const {
  std::ostringstream out;
  out << message << " [block " << block[0] << "," << block[1] << "," << block[2];
  if (current_thread)
    out << ", thread " << current_thread->index << " = warp " << current_thread->warp->index << " lane "
        << current_thread->lane;
  out << "]";
  throw Error(out.str());
}

void Machine::run(const Launch& launch, const std::function<void()>& kernel) {
  if (launch.threads == 0 || launch.threads % kWarp || launch.threads > kMaxWarps * kWarp)
    throw Error("threads must be a multiple of 32 up to 1024");
  launch_ = launch;
  random_ = launch.seed * 0x9E3779B97F4A7C15ull + 1;
  body_ = [this, &kernel] {
    try {
      kernel();
      Thread& t = thread();
      if (t.warp->arrived) fail(std::string("a lane returned while others wait at ") + t.warp->meeting);
      for (const auto& g : t.groups)
        if (!g.empty()) fail("a thread returned with a cp.async in flight");
      if (!t.uncommitted.empty()) fail("a thread returned with an uncommitted cp.async");
    } catch (const std::exception& e) {
      error_ = e.what();
    }
  };
  constexpr std::size_t kAlign = 1024;
  storage_ = std::make_unique<std::byte[]>(launch.shared_bytes + kAlign);
  const auto raw = reinterpret_cast<std::uintptr_t>(storage_.get());
  shared_ = storage_.get() + (kAlign - raw % kAlign) % kAlign;
  words_.resize((launch.shared_bytes + 3) / 4);
  const std::size_t warps = launch.threads / kWarp;
  reads_.resize(words_.size() * warps);
  warps_.resize(warps);
  for (std::uint32_t i = 0; i < launch.threads; ++i) {
    threads_.push_back(std::make_unique<Thread>());
    Thread& t = *threads_.back();
    t.index = static_cast<int>(i);
    t.lane = static_cast<int>(i) % kWarp;
    t.warp = &warps_[i / kWarp];
  }
  std::copy(launch.grid, launch.grid + 3, grid);
  current_machine = this;
  for (block[2] = 0; block[2] < grid[2]; ++block[2])
    for (block[1] = 0; block[1] < grid[1]; ++block[1])
      for (block[0] = 0; block[0] < grid[0]; ++block[0]) run_block();
  current_machine = nullptr;
}

void Machine::run_block() {
  std::memset(shared_, 0xFF, launch_.shared_bytes);  // NaN in fp32, fp16 and bf16
  std::fill(words_.begin(), words_.end(), Word{});
  std::fill(reads_.begin(), reads_.end(), 0u);
  barriers_ = {};
  extension.reset();
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    warps_[w] = Warp{};
    warps_[w].index = static_cast<int>(w);
    warps_[w].clock[w] = 1;
  }
  for (auto& t : threads_) {
    t->runnable = true;
    t->finished = false;
    t->uncommitted.clear();
    t->groups.clear();
    t->extension.reset();
    t->fiber.start(&body_);
  }
  std::vector<std::size_t> ready;
  for (;;) {
    ready.clear();
    bool all_finished = true;
    for (std::size_t w = 0; w < warps_.size(); ++w) {
      bool runnable = false;
      for (std::size_t lane = 0; lane < kWarp; ++lane) {
        const Thread& t = *threads_[w * kWarp + lane];
        runnable |= t.runnable;
        all_finished &= t.finished;
      }
      if (runnable) ready.push_back(w);
    }
    if (all_finished) return;
    if (ready.empty()) deadlock();
    std::size_t pick = 0;
    if (launch_.order == Order::reverse) pick = ready.size() - 1;
    if (launch_.order == Order::random) {
      random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
      pick = static_cast<std::size_t>(random_ >> 33) % ready.size();
    }
    step_warp(warps_[ready[pick]]);
  }
}

void Machine::step_warp(Warp& w) {
  const std::size_t first = static_cast<std::size_t>(w.index) * kWarp;
  for (std::size_t i = first; i < first + kWarp; ++i) {
    Thread& t = *threads_[i];
    if (!t.runnable) continue;
    current_thread = &t;
    t.fiber.resume();
    current_thread = nullptr;
    if (t.fiber.done()) {
      t.runnable = false;
      t.finished = true;
    }
    if (!error_.empty()) {
      const std::string message = std::exchange(error_, {});
      current_machine = nullptr;
      throw Error(message);
    }
  }
}

void Machine::wait(const char* what, const std::function<bool()>& ready) {
  Thread& t = thread();
  while (!ready()) {
    t.runnable = false;
    t.waiting_for = what;
    t.fiber.pause();
  }
  t.runnable = true;
}

void Machine::wake(Warp& w) {
  const std::size_t first = static_cast<std::size_t>(w.index) * kWarp;
  for (std::size_t i = first; i < first + kWarp; ++i) threads_[i]->runnable = !threads_[i]->finished;
}

void Machine::wake_all() {
  for (Warp& w : warps_) wake(w);
}

void Machine::diverged(const char* name) const {
  fail(std::string("divergence: a lane is at ") + name + " while others of its warp wait at " +
       thread().warp->meeting);
}

void Machine::deadlock() const {
  std::ostringstream out;
  out << "deadlock:";
  for (const auto& t : threads_)
    if (t->lane == 0)
      out << " warp " << t->warp->index << (t->finished ? " returned;" : " waits at " + t->waiting_for + ";");
  current_machine = nullptr;
  throw Error(out.str());
}

bool Machine::barrier(int id, int threads, bool waits, bool vote) {
  if (id < 0 || id > 15) fail("barrier id out of range: " + std::to_string(id));
  if (threads <= 0 || threads % kWarp)
    fail("a barrier counts whole warps, not " + std::to_string(threads) + " threads");
  NamedBarrier& b = barriers_[static_cast<std::size_t>(id)];
  Thread& t = thread();
  if (b.arrived && b.expected != threads)
    fail("barrier " + std::to_string(id) + " is in use for " + std::to_string(b.expected) + " threads, not " +
         std::to_string(threads));
  b.expected = threads;
  release(b.clock);
  b.any |= vote;
  if (waits) b.waiting.push_back(&t);
  if (++b.arrived == threads) {
    for (Thread* other : b.waiting) {
      for (std::size_t w = 0; w < warps_.size(); ++w)
        other->warp->clock[w] = std::max(other->warp->clock[w], b.clock[w]);
      other->runnable = true;
    }
    b.result = std::exchange(b.any, false);
    b.arrived = 0;
    b.clock = {};
    b.waiting.clear();
    ++b.generation;
    return b.result;
  }
  if (!waits) return false;
  const auto generation = b.generation;
  wait("barrier", [&b, generation] { return b.generation != generation; });
  return b.result;
}

void Machine::release(Clock& into) {
  Warp& w = *thread().warp;
  for (std::size_t i = 0; i < warps_.size(); ++i) into[i] = std::max(into[i], w.clock[i]);
  ++w.clock[static_cast<std::size_t>(w.index)];
}

void Machine::acquire(const Clock& from) {
  Warp& w = *thread().warp;
  for (std::size_t i = 0; i < warps_.size(); ++i) w.clock[i] = std::max(w.clock[i], from[i]);
}

std::uint32_t Machine::shared_offset(const void* pointer) const {
  const auto* p = static_cast<const std::byte*>(pointer);
  if (p < shared_ || p > shared_ + launch_.shared_bytes)
    fail("shared_address of a pointer outside shared memory");
  return static_cast<std::uint32_t>(p - shared_);
}

std::byte* Machine::shared(std::uint32_t address, std::size_t bytes, std::size_t alignment, bool write) {
  if (std::size_t{address} + bytes > launch_.shared_bytes)
    fail("shared memory access at " + std::to_string(address) + " + " + std::to_string(bytes) + " of " +
         std::to_string(launch_.shared_bytes) + " bytes");
  if (address % alignment)
    fail("misaligned shared memory access at " + std::to_string(address) + ", must be a multiple of " +
         std::to_string(alignment));
  for (std::size_t word = address / 4; word < (address + bytes + 3) / 4; ++word) check_race(word, write);
  return shared_ + address;
}

void Machine::check_race(std::size_t word, bool write) {
  const Warp& w = *thread().warp;
  const std::size_t self = static_cast<std::size_t>(w.index), n = warps_.size();
  Word& x = words_[word];
  const auto complain = [&](const char* what, std::size_t other) {
    fail(std::string("race: ") + what + " at shared memory byte " + std::to_string(4 * word) + " with warp " +
         std::to_string(other) + ", no barrier between");
  };
  if (x.writer >= 0 && x.written > w.clock[static_cast<std::size_t>(x.writer)])
    complain(write ? "write after write" : "read after write", static_cast<std::size_t>(x.writer));
  std::uint32_t* reads = &reads_[word * n];
  if (write) {
    for (std::size_t other = 0; other < n; ++other)
      if (reads[other] > w.clock[other]) complain("write after read", other);
    x.written = w.clock[self];
    x.writer = w.index;
  } else {
    reads[self] = w.clock[self];
  }
}

void launch(const Launch& l, const std::function<void()>& kernel) {
  Machine machine;
  machine.run(l, kernel);
}

Registered::Registered(const void* data, std::size_t bytes, std::string name, bool writable) : data_(data) {
  const auto* p = static_cast<const std::byte*>(data);
  regions()[p] = {p + bytes, std::move(name), writable};
}

Registered::~Registered() { regions().erase(static_cast<const std::byte*>(data_)); }

void check_global_access(const void* pointer, std::size_t bytes, bool write) {
  const auto* p = static_cast<const std::byte*>(pointer);
  const Machine& m = Machine::now();
  if (reinterpret_cast<std::uintptr_t>(p) % bytes)
    m.fail("misaligned global access of " + std::to_string(bytes) + " bytes");
  auto it = regions().upper_bound(p);
  if (it != regions().begin()) {
    --it;
    if (p + bytes <= it->second.end) {
      if (write && !it->second.writable) m.fail("write to read-only tensor " + it->second.name);
      return;
    }
    m.fail("global access " + std::to_string(p + bytes - it->second.end) + " bytes past the end of " +
           it->second.name);
  }
  m.fail("global access outside every registered tensor");
}

}  // namespace tilewise::emulator
