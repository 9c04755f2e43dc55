// A stack of its own and a switch onto it: what one emulated GPU thread runs on.
#pragma once

#include <cstddef>
#include <functional>

namespace tilewise::emulator {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void start(const std::function<void()>* body);  // runs at the next resume(); reuses the stack
  void resume();                                  // from the scheduler: runs until pause() or the end
  void pause();                                   // from inside: back to the scheduler
  bool done() const { return done_; }

 private:
  static void entry();

  static constexpr std::size_t kStack = 256 << 10;
  std::byte* stack_;
  void *inside_ = nullptr, *outside_ = nullptr;  // saved stack pointers
  const std::function<void()>* body_ = nullptr;
  bool done_ = true;
};

}  // namespace tilewise::emulator
