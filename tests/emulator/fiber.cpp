// x86-64 and AArch64 switch in a dozen instructions (ucontext's two system calls a switch would be most of
// the run time).
#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#ifndef MAP_STACK
#define MAP_STACK 0
#endif

// Saves the callee-saved registers and the stack pointer to *from, continues on `to`.
extern "C" void tilewise_switch_stack(void** from, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.globl tilewise_switch_stack
.type tilewise_switch_stack, @function
tilewise_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tilewise_switch_stack, .-tilewise_switch_stack
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl tilewise_switch_stack
tilewise_switch_stack:
  sub sp, sp, #176
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #176
  ret
)");
#else
#error "the emulator's stack switch knows x86-64 and AArch64"
#endif

namespace tilewise::emulator {
namespace {
Fiber* starting = nullptr;
}

Fiber::Fiber() {
  void* p = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  mprotect(p, 4096, PROT_NONE);
  stack_ = static_cast<std::byte*>(p);
}

Fiber::~Fiber() { munmap(stack_, kStack); }

void Fiber::entry() {
  Fiber* self = starting;
  (*self->body_)();
  self->done_ = true;
  self->pause();
}

void Fiber::start(const std::function<void()>* body) {
  body_ = body;
  done_ = false;
  auto* top = reinterpret_cast<void**>(stack_ + kStack);
#if defined(__x86_64__)
  top -= 2;  // alignment as after a call
  top[0] = reinterpret_cast<void*>(&Fiber::entry);
  top[1] = nullptr;
  inside_ = top - 6;
#else
  top -= 22;
  top[11] = reinterpret_cast<void*>(&Fiber::entry);  // x30
  inside_ = top;
#endif
}

void Fiber::resume() {
  starting = this;
  tilewise_switch_stack(&outside_, inside_);
}

void Fiber::pause() { tilewise_switch_stack(&inside_, outside_); }

}  // namespace tilewise::emulator
